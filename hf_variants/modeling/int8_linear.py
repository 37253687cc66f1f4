"""An 8-bit linear layer in the `pack-quantized` layout of compressed-tensors that needs nothing but torch.

Notable here: the state dict is the file's, bit for bit (`weight_packed` holds codes + 128, four to a word); torch's kernel
wants signed bytes, so the words are turned at first use, instead of a second copy, and turned back wherever a state dict is
asked for; few rows of bfloat16 go through that kernel, everything else multiplies by the matrix that the codes stand for.
"""

import torch
from torch import nn

from .group_codes import GroupCodes
from .packed_linear import PackedLinear

# codes in one word of 32 bits
PACK = 4
MIDDLE = 128
# Measured on one CPU core: above this number of rows the dense product is faster than the int8 kernel.
KERNEL_ROWS = 8
# The kernel reads whole vectors of inputs.
_KERNEL_INPUTS = 32
# Flips the highest bit of each byte of a word: codes + 128 as bytes become signed codes, and the other way round.
_SIGN_BITS = -0x7F7F7F80
# Numbers dequantised at a time.
_DEQUANTIZED = 1 << 20


class Int8Linear(PackedLinear):
    """A `PackedLinear` with W[o, i] = q[o, i] * s[o, i // g], q in -128..127; `in_features` must be a multiple of 4.

    Buffers: `weight_packed` int32 [out, in / 4], `weight_scale` bfloat16 [out, in / g], `weight_shape` int64 [2]; after the
    first product the first is int8 [out, in], and the state dict has it as int32.

    Raises:
        ValueError: for a shape that the layout cannot hold.
    """

    scale_name = "weight_scale"
    word_names = ("weight_packed",)

    def __init__(self, in_features, out_features, group_size, bias=False, device=None, dtype=None):
        super().__init__(in_features, out_features, group_size, bias, device, dtype)
        if in_features % PACK:
            raise ValueError(f"in_features={in_features} is not a multiple of 4, the number of codes in a packed word")
        groups = in_features // self.group_size
        words = torch.zeros(out_features, in_features // PACK, dtype=torch.int32, device=device)
        self.register_buffer("weight_packed", words)
        self.register_buffer("weight_scale", torch.zeros(out_features, groups, dtype=torch.bfloat16, device=device))
        self.register_buffer("weight_shape", torch.tensor([out_features, in_features], device=device))

    def pack(self, codes):
        self.weight_packed = codes.codes.contiguous().view(torch.int32)
        self.weight_scale = codes.scales

    @staticmethod
    def codes_of(weight_packed, weight_scale, group, weight_shape=None):
        """The `GroupCodes` that packed tensors stand for."""
        zeros = torch.full_like(weight_scale, MIDDLE, dtype=torch.uint8)
        return GroupCodes(weight_packed.contiguous().view(torch.uint8), zeros, weight_scale, group, 2 * MIDDLE - 1)

    def to_codes(self):
        return self.codes_of(self.words("weight_packed").clone(), self.weight_scale, self.group_size)

    def to_words(self, held):
        return held.view(torch.int32) ^ _SIGN_BITS

    def signed_codes(self):
        """int8 [out, in], without a copy after the first call."""
        if self.weight_packed.dtype != torch.int8:
            self.weight_packed = (self.weight_packed ^ _SIGN_BITS).view(torch.int8)
        return self.weight_packed

    def dequantize(self, dtype=torch.float32):
        codes, group = self.signed_codes(), self.group_size
        weight = torch.empty(self.out_features, self.in_features, dtype=dtype, device=codes.device)
        # a part of the outputs at a time: this runs before products of many rows, and waits for memory
        step = max(1, _DEQUANTIZED // self.in_features)
        for start in range(0, self.out_features, step):
            part = slice(start, start + step)
            values = codes[part].float().unflatten(1, (-1, group))
            weight[part] = values.mul_(self.weight_scale[part].float().unsqueeze(-1)).flatten(1)
        return weight

    def dense_product(self, x):
        if self.group_size < self.in_features or x.dtype != torch.bfloat16:
            return super().dense_product(x)
        # codes are exact in bfloat16, which has the range for their products (float16 has not)
        y = nn.functional.linear(x, self.signed_codes().to(x.dtype))
        return y * self.weight_scale.squeeze(1).to(x.dtype)

    def kernel_applies(self, x):
        rows = x.numel() // self.in_features
        if x.dtype != torch.bfloat16 or x.device.type != "cpu" or not 0 < rows <= KERNEL_ROWS:
            return False
        return self.group_size == self.in_features and self.in_features % _KERNEL_INPUTS == 0

    def kernel_product(self, x):
        rows = x.reshape(-1, self.in_features)
        y = torch.ops.aten._weight_int8pack_mm(rows, self.signed_codes(), self.weight_scale.squeeze(1))
        return y.view(*x.shape[:-1], self.out_features)
