"""A 4-bit linear layer in the AutoAWQ `gemm` layout that needs nothing but torch.

Notable here: the state dict is the file's (`qweight`, `qzeros`, `scales`), bit for bit, whatever was computed or cast
in between; few rows of bfloat16 go through torch's own int4 kernels, on a repacked copy made at first use; everything
else multiplies by the dequantised matrix, so float32 gives exactly what the codes say.
"""

import torch
from torch import nn

from .packing import PACK, pack_gemm, unpack_gemm, unpack_words
from .rounding import GroupCodes

# Measured on one CPU core: above this number of rows one dense product is faster than the int4 kernel.
KERNEL_ROWS = 32
# Numbers dequantised at a time.
_DEQUANTIZED = 1 << 20
_KERNEL_GROUPS = (32, 64, 128, 256)
_CUDA_INNER_TILES = 8


class _DequantizedProduct(torch.autograd.Function):
    """x W^T whose backward pass dequantises again, so that no dense matrix is kept in between."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return nn.functional.linear(x, layer.dequantize(x.dtype))

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.layer.dequantize(gradient.dtype), None


class AwqLinear(nn.Module):
    """y = x W^T + b with W[o, i] = (q[o, i] - z[o, i // g]) * s[o, i // g].

    Args:
        in_features, out_features: shape of the dense layer; `out_features` must be a multiple of 8.
        group_size: inputs that share a scale; -1 for one scale per output. Must divide `in_features`.
        bias: whether a bias is added.

    dtype: what the model around it computes in; it decides the dtype of `weight` and follows casts of the model.

    Buffers: `qweight` int32 [in, out / 8], `qzeros` int32 [in / g, out / 8], `scales` float16 [in / g, out].

    Raises:
        ValueError: for a shape that the layout cannot hold.
    """

    # all it does is x W^T + b with W = `weight`, so latent attention may absorb it
    holds_plain_matrix = True

    def __init__(self, in_features, out_features, group_size, bias=False, device=None, dtype=None):
        super().__init__()
        group = in_features if group_size == -1 else group_size
        if group <= 0 or in_features % group:
            raise ValueError(f"group_size={group_size} does not divide in_features={in_features}")
        if out_features % PACK:
            raise ValueError(f"out_features={out_features} is not a multiple of 8, the number of codes in a packed word")
        self.in_features, self.out_features, self.group_size = in_features, out_features, group
        groups, words = in_features // group, out_features // PACK
        self.register_buffer("qweight", torch.zeros(in_features, words, dtype=torch.int32, device=device))
        self.register_buffer("qzeros", torch.zeros(groups, words, dtype=torch.int32, device=device))
        self.register_buffer("scales", torch.zeros(groups, out_features, dtype=torch.float16, device=device))
        self.bias = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype), requires_grad=False) if bias else None
        self._like = torch.empty(0, dtype=dtype or torch.get_default_dtype())
        self._kernel = None

    @classmethod
    def from_codes(cls, codes, bias=None):
        """The layer that holds `codes` (a `GroupCodes`) and `bias` (a tensor or None)."""
        out_features, in_features = codes.codes.shape
        dtype = torch.float32 if bias is None else bias.dtype
        layer = cls(in_features, out_features, codes.group, bias is not None, codes.codes.device, dtype)
        layer.qweight = pack_gemm(codes.codes.t().contiguous())
        layer.qzeros = pack_gemm(codes.zeros.t().contiguous())
        layer.scales = codes.scales.t().contiguous()
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
        return layer

    def compute_in(self, dtype):
        """Say what the model around it computes in, where it was cast parameter by parameter."""
        self._like = self._like.to(dtype)

    @staticmethod
    def codes_of(qweight, qzeros, scales, group):
        """The `GroupCodes` that packed tensors stand for."""
        codes, zeros = unpack_gemm(qweight).t().contiguous(), unpack_gemm(qzeros).t().contiguous()
        return GroupCodes(codes, zeros, scales.t().contiguous(), group)

    def to_codes(self):
        """The `GroupCodes` of this layer: the inverse of `from_codes`."""
        return self.codes_of(self.qweight, self.qzeros, self.scales, self.group_size)

    def dequantize(self, dtype=torch.float32):
        """The dense weight [out, in], computed in float32 and then cast to `dtype`."""
        groups, group = self.qzeros.shape[0], self.group_size
        zeros, scales = unpack_words(self.qzeros).unsqueeze(1), self.scales.float().unsqueeze(1)
        words = self.qweight.view(groups, group, -1)
        weight = torch.empty(groups, group, self.out_features, dtype=dtype, device=words.device)
        # a part of the groups at a time: this runs before every product of many rows, and waits for memory
        step = max(1, _DEQUANTIZED // (group * self.out_features))
        for start in range(0, groups, step):
            part = slice(start, start + step)
            codes = unpack_words(words[part].flatten(0, 1)).view(-1, group, self.out_features)
            weight[part] = codes.sub_(zeros[part]).float().mul_(scales[part])
        return weight.flatten(0, 1).t()

    @property
    def weight(self):
        """The dense weight [out, in], made anew at each access, in the dtype of the model around it."""
        return self.dequantize(self._like.dtype)

    def forward(self, x):
        if self._kernel_applies(x):
            y = self._kernel_product(x)
            return y if self.bias is None else y + self.bias.to(y.dtype)
        if torch.is_grad_enabled() and x.requires_grad:
            y = _DequantizedProduct.apply(x, self)
        else:
            y = nn.functional.linear(x, self.dequantize(x.dtype))
        return y if self.bias is None else y + self.bias.to(x.dtype)

    def _kernel_applies(self, x):
        rows = x.numel() // self.in_features
        if x.dtype != torch.bfloat16 or not 0 < rows <= KERNEL_ROWS or self.group_size not in _KERNEL_GROUPS:
            return False
        if torch.is_grad_enabled() and x.requires_grad:
            return False
        return _has_kernel(x.device, self.in_features, self.out_features)

    def _kernel_product(self, x):
        # Loading assigns new tensors; whoever writes into them in place goes through _load_from_state_dict.
        if self._kernel is None or self._kernel[0] is not self.qweight:
            self._kernel = (self.qweight, *self._repack())
        _, packed, scale_and_zero = self._kernel
        rows = x.reshape(-1, self.in_features)
        multiply = torch.ops.aten._weight_int4pack_mm_for_cpu if x.device.type == "cpu" else torch.ops.aten._weight_int4pack_mm
        return multiply(rows, packed, self.group_size, scale_and_zero).view(*x.shape[:-1], self.out_features)

    def _repack(self):
        """Torch's layout: w = (q - 8) * scale + zero, hence zero = (8 - z) * s."""
        codes, scales = unpack_gemm(self.qweight).t(), self.scales.float()
        zeros = (8 - unpack_gemm(self.qzeros).float()) * scales
        scale_and_zero = torch.stack([scales, zeros], dim=-1).to(torch.bfloat16).contiguous()
        if codes.device.type == "cpu":
            return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int().contiguous(), 1), scale_and_zero
        pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).contiguous()
        return torch.ops.aten._convert_weight_to_int4pack(pairs, _CUDA_INNER_TILES), scale_and_zero

    def _apply(self, fn, recurse=True):
        scales = self.scales
        super()._apply(fn, recurse)
        if self.scales.dtype != scales.dtype:
            # A cast of the model must not round the stored scales.
            self.scales = scales.to(self.scales.device)
        self._like = torch.empty(0, dtype=fn(torch.empty(0, dtype=self._like.dtype)).dtype)
        self._kernel = None
        return self

    def _load_from_state_dict(self, *args, **kwargs):
        self._kernel = None
        super()._load_from_state_dict(*args, **kwargs)

    def extra_repr(self):
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{shape}, group_size={self.group_size}, bias={self.bias is not None}"


def _has_kernel(device, in_features, out_features):
    if device.type == "cpu":
        return out_features % 16 == 0
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return in_features % (_CUDA_INNER_TILES * 16) == 0 and out_features % 8 == 0
