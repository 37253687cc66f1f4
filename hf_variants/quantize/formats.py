"""The two formats that quantized checkpoints are written in, and what each can hold.

4 bits   AutoAWQ `gemm`, codes with zero points, scales in float16
8 bits   compressed-tensors `pack-quantized`, symmetric codes, scales in bfloat16 (exact in what the layers compute in)
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..modeling import awq_linear, awq_packing, int8_linear
from ..modeling.int8_loading import int8_settings

GROUP_SIZES = (32, 64, 128, 256, -1)


def _awq_settings(group_size, dense_names):
    config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}
    return {**config, "modules_to_not_convert": list(dense_names)}


@dataclass(frozen=True)
class Format:
    """How matrices are stored.

    Attributes:
        linear: the layer that holds them. tensors: names of its buffers.
        settings: (group_size, names of what stays dense) -> `quantization_config`.
        in_multiple, out_multiple: what the widths of a matrix must be multiples of.
        scale_dtype: of the scales as they are stored, rounded before codes are chosen.
    """

    name: str
    bits: int
    linear: type
    tensors: tuple
    settings: Callable
    in_multiple: int
    out_multiple: int
    scale_dtype: torch.dtype

    @property
    def top(self):
        """The largest code; the smallest is 0."""
        return 2**self.bits - 1


FORMATS = {
    4: Format(
        name="AWQ gemm",
        bits=4,
        linear=awq_linear.AwqLinear,
        tensors=("qweight", "qzeros", "scales"),
        settings=_awq_settings,
        in_multiple=1,
        out_multiple=awq_packing.PACK,
        scale_dtype=torch.float16,
    ),
    8: Format(
        name="compressed-tensors pack-quantized",
        bits=8,
        linear=int8_linear.Int8Linear,
        tensors=("weight_packed", "weight_scale", "weight_shape"),
        settings=int8_settings,
        in_multiple=int8_linear.PACK,
        out_multiple=1,
        scale_dtype=torch.bfloat16,
    ),
}
PACKED_TENSORS = tuple(name for form in FORMATS.values() for name in form.tensors)
# method -> (bits, group size) where none is given
METHOD_WIDTHS = {"awq": (4, 64), "rtn": (4, 64), "int8": (8, -1)}


def width_of(method, bits=None, group_size=None):
    """(bits, group_size) of a method, with its own where None is given.

    Raises:
        ValueError: for an unknown method, and for a width or a group size that its format cannot hold.
    """
    if method not in METHOD_WIDTHS:
        raise ValueError(f"method={method!r} is unknown; choose from {list(METHOD_WIDTHS)}")
    usual_bits, usual_group = METHOD_WIDTHS[method]
    bits, group_size = usual_bits if bits is None else bits, usual_group if group_size is None else group_size
    if bits != usual_bits:
        others = [name for name, (width, _) in METHOD_WIDTHS.items() if width == bits]
        advice = f"; bits={bits} is what method={others[0]!r} writes" if others else ""
        raise ValueError(
            f"bits={bits} cannot be written by method={method!r}: its format ({FORMATS[usual_bits].name}) stores "
            f"{usual_bits}-bit codes; choose from [{usual_bits}]{advice}"
        )
    if group_size not in GROUP_SIZES:
        raise ValueError(
            f"group_size={group_size} is not supported; choose from {list(GROUP_SIZES)} (-1: one group per output channel)"
        )
    return bits, group_size
