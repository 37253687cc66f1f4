"""4-bit weights: AWQ and round-to-nearest, written in the AutoAWQ `gemm` format and loaded with stock torch."""

from .awq import quantize_awq, quantize_rtn
from .awq_linear import AwqLinear
from .checkpoint import quantize_checkpoint
from .loading import TorchAwqQuantizer, register_awq
from .result import QuantizationReport, QuantizedModel
from .writer import save_quantized

register_awq()

__all__ = [
    "AwqLinear",
    "QuantizationReport",
    "QuantizedModel",
    "TorchAwqQuantizer",
    "quantize_awq",
    "quantize_checkpoint",
    "quantize_rtn",
    "register_awq",
    "save_quantized",
]
