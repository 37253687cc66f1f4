"""Quantized weights, loaded with stock torch: AWQ and round-to-nearest in 4 bits (AutoAWQ `gemm`), and 8 bits
(compressed-tensors)."""

from ..modeling.awq_linear import AwqLinear
from ..modeling.awq_loading import TorchAwqQuantizer, register_awq
from ..modeling.int8_linear import Int8Linear
from ..modeling.int8_loading import register_int8
from .adapters import dequantize
from .checkpoint import quantize_checkpoint
from .quality import quantization_quality
from .result import QuantizationReport, QuantizedModel
from .whole_model import quantize_awq, quantize_int8, quantize_rtn
from .writer import save_quantized

register_awq()
register_int8()

# the names of the methods, as the command line knows them
awq, rtn, int8 = quantize_awq, quantize_rtn, quantize_int8

__all__ = [
    "AwqLinear",
    "Int8Linear",
    "QuantizationReport",
    "QuantizedModel",
    "TorchAwqQuantizer",
    "awq",
    "dequantize",
    "int8",
    "quantization_quality",
    "quantize_awq",
    "quantize_checkpoint",
    "quantize_int8",
    "quantize_rtn",
    "register_awq",
    "register_int8",
    "rtn",
    "save_quantized",
]
