"""A 4-bit linear layer in the AutoAWQ `gemm` layout that needs nothing but torch.

Notable here: the state dict is the file's (`qweight`, `qzeros`, `scales`), bit for bit, whatever was computed or cast
in between; few rows of bfloat16 go through torch's own int4 kernels, on a repacked copy made at first use; everything
else multiplies by the dequantised matrix, so float32 gives exactly what the codes say. The words of the file unpack slowly,
so the first such product turns them into halves of the same size, which stand in their place.
"""

import torch

from .awq_packing import PACK, from_halves, pack_gemm, to_halves, unpack_gemm, unpack_halves
from .group_codes import GroupCodes
from .packed_linear import PackedLinear

# Measured on one CPU core: above this number of rows one dense product is faster than the int4 kernel.
KERNEL_ROWS = 32
# Numbers dequantised at a time.
_DEQUANTIZED = 1 << 19
_KERNEL_GROUPS = (32, 64, 128, 256)
_CUDA_INNER_TILES = 8


class AwqLinear(PackedLinear):
    """A `PackedLinear` with W[o, i] = (q[o, i] - z[o, i // g]) * s[o, i // g]; `out_features` must be a multiple of 8.

    Buffers: `qweight` int32 [in, out / 8], `qzeros` int32 [in / g, out / 8], `scales` float16 [in / g, out]; once
    dequantised, the first two are uint8 [..., out / 2] (`to_halves`), and the state dict has them as int32.

    Raises:
        ValueError: for a shape that the layout cannot hold.
    """

    scale_name = "scales"
    word_names = ("qweight", "qzeros")

    def __init__(self, in_features, out_features, group_size, bias=False, device=None, dtype=None):
        super().__init__(in_features, out_features, group_size, bias, device, dtype)
        if out_features % PACK:
            raise ValueError(f"out_features={out_features} is not a multiple of 8, the number of codes in a packed word")
        groups, words = in_features // self.group_size, out_features // PACK
        self.register_buffer("qweight", torch.zeros(in_features, words, dtype=torch.int32, device=device))
        self.register_buffer("qzeros", torch.zeros(groups, words, dtype=torch.int32, device=device))
        self.register_buffer("scales", torch.zeros(groups, out_features, dtype=torch.float16, device=device))
        self._kernel = None

    def pack(self, codes):
        self.qweight = pack_gemm(codes.codes.t().contiguous())
        self.qzeros = pack_gemm(codes.zeros.t().contiguous())
        self.scales = codes.scales.t().contiguous()

    @staticmethod
    def codes_of(qweight, qzeros, scales, group):
        """The `GroupCodes` that packed tensors stand for."""
        codes, zeros = unpack_gemm(qweight).t().contiguous(), unpack_gemm(qzeros).t().contiguous()
        return GroupCodes(codes, zeros, scales.t().contiguous(), group)

    def to_codes(self):
        """The `GroupCodes` of this layer: the inverse of `from_codes`."""
        return self.codes_of(self.words("qweight"), self.words("qzeros"), self.scales, self.group_size)

    def to_words(self, held):
        return from_halves(held)

    def _halves(self, name):
        """A buffer as halves, which stay in its place."""
        held = getattr(self, name)
        if held.dtype != torch.int32:
            return held
        halves = to_halves(held)
        setattr(self, name, halves)
        if self._kernel is not None and self._kernel[0] is held:
            self._kernel = (halves, *self._kernel[1:])
        return halves

    def dequantize(self, dtype=torch.float32):
        """The dense weight [out, in], computed in float32 and then cast to `dtype`."""
        outputs, group = self.out_features, self.group_size
        zeros = unpack_halves(self._halves("qzeros")).unsqueeze(1)
        scales = self.scales.float().unsqueeze(1)
        halves = self._halves("qweight").unflatten(0, (-1, group))
        weight = torch.empty(halves.shape[0], group, outputs, dtype=dtype, device=halves.device)
        # a part of the groups at a time: this runs before every product of many rows, and waits for memory
        step = max(1, _DEQUANTIZED // (group * outputs))
        for start in range(0, len(weight), step):
            part = slice(start, start + step)
            # a difference of codes, -15..15, is right as a signed byte
            steps = unpack_halves(halves[part]).sub_(zeros[part]).view(torch.int8)
            weight[part] = steps.float().mul_(scales[part])
        return weight.flatten(0, 1).t()

    def kernel_applies(self, x):
        rows = x.numel() // self.in_features
        if x.dtype != torch.bfloat16 or not 0 < rows <= KERNEL_ROWS or self.group_size not in _KERNEL_GROUPS:
            return False
        return _has_kernel(x.device, self.in_features, self.out_features)

    def kernel_product(self, x):
        # Loading assigns new tensors; whoever writes into them in place goes through _load_from_state_dict.
        if self._kernel is None or self._kernel[0] is not self.qweight:
            self._kernel = (self.qweight, *self._repack())
        _, packed, scale_and_zero = self._kernel
        rows = x.reshape(-1, self.in_features)
        multiply = torch.ops.aten._weight_int4pack_mm_for_cpu if x.device.type == "cpu" else torch.ops.aten._weight_int4pack_mm
        return multiply(rows, packed, self.group_size, scale_and_zero).view(*x.shape[:-1], self.out_features)

    def _repack(self):
        """Torch's layout: w = (q - 8) * scale + zero, hence zero = (8 - z) * s."""
        held, scales = self.to_codes(), self.scales.float()
        codes, zeros = held.codes, (8 - held.zeros.t().float()) * scales
        scale_and_zero = torch.stack([scales, zeros], dim=-1).to(torch.bfloat16).contiguous()
        if codes.device.type == "cpu":
            return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int().contiguous(), 1), scale_and_zero
        pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).contiguous()
        return torch.ops.aten._convert_weight_to_int4pack(pairs, _CUDA_INNER_TILES), scale_and_zero

    def _apply(self, fn, recurse=True):
        self._kernel = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args, **kwargs):
        super()._load_from_state_dict(*args, **kwargs)
        self._kernel = None


def _has_kernel(device, in_features, out_features):
    if device.type == "cpu":
        return out_features % 16 == 0
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return in_features % (_CUDA_INNER_TILES * 16) == 0 and out_features % 8 == 0
