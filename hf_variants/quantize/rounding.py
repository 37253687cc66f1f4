"""Round-to-nearest in groups: w is approximated by (q - z) * s with q, z in 0..top and one (z, s) per group of inputs.

Notable here: the scale is rounded to float16 (or what it will be stored in) BEFORE the weights are coded against it; ranges
always hold zero, so that z is a code too; symmetric codes are asymmetric ones with z in the middle, so both are one format;
every function accepts leading batch dimensions.
"""

import torch

from ..modeling.group_codes import LEVELS, GroupCodes, grouped

# The smallest float16 step: an all-zero group still needs a scale to divide by.
_SMALLEST_SCALE = 2.0**-24


def group_range(weight, group):
    """Lower (<= 0) and upper (>= 0) end of every group, each [..., out, in / group]."""
    low, high = torch.aminmax(grouped(weight, group), dim=-1)
    return low.clamp_(max=0), high.clamp_(min=0)


def grid(low, high, top=LEVELS, symmetric=False, scale_dtype=torch.float16):
    """(zeros, scales), float32: the grid of groups with these ends, its scale as `scale_dtype` will hold it."""
    if symmetric:
        middle = (top + 1) // 2
        # one code more lies below zero than above
        scales = torch.maximum(-low / middle, high / (top - middle)).to(scale_dtype).float().clamp_(min=_SMALLEST_SCALE)
        return torch.full_like(scales, middle), scales
    scales = ((high - low) / top).to(scale_dtype).float().clamp_(min=_SMALLEST_SCALE)
    return (-low / scales).round_().clamp_(0, top), scales


def fake_quantize(weight, group, low=None, high=None, *, top=LEVELS, symmetric=False):
    """`weight` [..., out, in] after one round trip, in float32; `low` and `high` clip each group."""
    if low is None:
        low, high = group_range(weight, group)
    zeros, scales = (t.unsqueeze(-1) for t in grid(low, high, top, symmetric))
    codes = (grouped(weight, group) / scales).round_().add_(zeros).clamp_(0, top)
    return codes.sub_(zeros).mul_(scales).flatten(-2)


def quantize_groups(weight, group, low=None, high=None, *, top=LEVELS, symmetric=False, scale_dtype=torch.float16):
    """Code `weight` [out, in] into `GroupCodes`; `low` and `high` [out, in / group] clip each group."""
    weight = weight.float()
    if low is None:
        low, high = group_range(weight, group)
    zeros, scales = grid(low, high, top, symmetric, scale_dtype)
    codes = (grouped(weight, group) / scales.unsqueeze(-1)).round_().add_(zeros.unsqueeze(-1)).clamp_(0, top)
    return GroupCodes(codes.flatten(-2).to(torch.uint8), zeros.to(torch.uint8), scales.to(scale_dtype), group, top)
