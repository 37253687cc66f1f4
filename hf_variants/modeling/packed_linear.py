"""What linear layers over packed weights have in common, whatever the format.

Notable here: no dense matrix is kept, neither for the backward pass nor as `weight`, which is made anew at each access; a cast
of the model never touches the packed tensors. What products read in another order than the file's stands in the place of the
file's words, told by its dtype, which survives copies and moves; a state dict always holds the words.
"""

import torch
from torch import nn


class _DequantizedProduct(torch.autograd.Function):
    """x W^T whose backward pass dequantises again, so that no dense matrix is kept in between."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return layer.dense_product(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.layer.dequantize(gradient.dtype), None


class PackedLinear(nn.Module):
    """y = x W^T + b over a packed W; a format says how it is stored (`dequantize`) and may bring a kernel for few rows.

    Args:
        in_features, out_features: shape of the dense layer.
        group_size: inputs that share a scale; -1 for one scale per output. Must divide `in_features`.
        bias: whether a bias is added.
        dtype: what the model around it computes in; it decides the dtype of `weight` and follows casts of the model.

    Raises:
        ValueError: for a shape that the format cannot hold.
    """

    # all it does is x W^T + b with W = `weight`, so latent attention may absorb it
    holds_plain_matrix = True
    # the buffer that no cast of the model may round
    scale_name = None
    # the buffers that are int32 words in the file, and of another dtype where products have them in their own order
    word_names = ()

    def __init__(self, in_features, out_features, group_size, bias=False, device=None, dtype=None):
        super().__init__()
        group = in_features if group_size == -1 else group_size
        if group <= 0 or in_features % group:
            raise ValueError(f"group_size={group_size} does not divide in_features={in_features}")
        self.in_features, self.out_features, self.group_size = in_features, out_features, group
        self.bias = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype), requires_grad=False) if bias else None
        self._like = torch.empty(0, dtype=dtype or torch.get_default_dtype())

    @classmethod
    def from_codes(cls, codes, bias=None):
        """The layer that holds `codes` (a `GroupCodes`) and `bias` (a tensor or None)."""
        out_features, in_features = codes.codes.shape
        dtype = torch.float32 if bias is None else bias.dtype
        layer = cls(in_features, out_features, codes.group, bias is not None, codes.codes.device, dtype)
        layer.pack(codes)
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
        return layer

    def pack(self, codes):
        """Hold `codes` (a `GroupCodes`)."""
        raise NotImplementedError

    def to_codes(self):
        """The `GroupCodes` of this layer: the inverse of `from_codes`."""
        raise NotImplementedError

    def compute_in(self, dtype):
        """Say what the model around it computes in, where it was cast parameter by parameter."""
        self._like = self._like.to(dtype)

    def to_words(self, held):
        """The file's int32 words of what products hold in their own order."""
        raise NotImplementedError

    def words(self, name):
        """The buffer `name` as in the file."""
        held = getattr(self, name)
        return held if held.dtype == torch.int32 else self.to_words(held)

    def dequantize(self, dtype=torch.float32):
        """The dense weight [out, in], computed in float32 and then cast to `dtype`."""
        raise NotImplementedError

    def kernel_applies(self, x):
        """Whether `kernel_product` takes `x` [..., in] here."""
        return False

    def dense_product(self, x):
        """x W^T for any number of rows."""
        return nn.functional.linear(x, self.dequantize(x.dtype))

    @property
    def weight(self):
        """The dense weight [out, in], made anew at each access, in the dtype of the model around it."""
        return self.dequantize(self._like.dtype)

    def forward(self, x):
        if torch.is_grad_enabled() and x.requires_grad:
            y = _DequantizedProduct.apply(x, self)
        elif self.kernel_applies(x):
            y = self.kernel_product(x)
        else:
            y = self.dense_product(x)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def _apply(self, fn, recurse=True):
        scales = getattr(self, self.scale_name)
        super()._apply(fn, recurse)
        moved = getattr(self, self.scale_name)
        if moved.dtype != scales.dtype:
            # A cast of the model must not round the stored scales.
            setattr(self, self.scale_name, scales.to(moved.device))
        self._like = torch.empty(0, dtype=fn(torch.empty(0, dtype=self._like.dtype)).dtype)
        return self

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self.word_names:
            destination[f"{prefix}{name}"] = self.words(name)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        for name in self.word_names:
            setattr(self, name, self.words(name))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self):
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{shape}, group_size={self.group_size}, bias={self.bias is not None}"
