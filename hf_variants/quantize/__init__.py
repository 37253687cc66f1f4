"""4-bit weights: AWQ and round-to-nearest, written in the AutoAWQ `gemm` format and loaded with stock torch."""

from ..modeling.awq_linear import AwqLinear
from ..modeling.awq_loading import TorchAwqQuantizer, register_awq
from .adapters import dequantize
from .checkpoint import quantize_checkpoint
from .quality import quantization_quality
from .result import QuantizationReport, QuantizedModel
from .whole_model import quantize_awq, quantize_rtn
from .writer import save_quantized

register_awq()

# the names of the methods, as the command line knows them
awq, rtn = quantize_awq, quantize_rtn

__all__ = [
    "AwqLinear",
    "QuantizationReport",
    "QuantizedModel",
    "TorchAwqQuantizer",
    "awq",
    "dequantize",
    "quantization_quality",
    "quantize_awq",
    "quantize_checkpoint",
    "quantize_rtn",
    "register_awq",
    "rtn",
    "save_quantized",
]
