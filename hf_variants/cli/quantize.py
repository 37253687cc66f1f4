"""`hf-variants quantize`."""

from ..jobs.specs import QuantizeSpec
from .console import announce, show_numbers
from .recipe_command import add_recipe_command


def add_to(app):
    add_recipe_command(app, "quantize", QuantizeSpec, run, "Quantize a checkpoint to 4 bits (AWQ or rounding).")


def run(spec):
    from ..jobs.quantization import quantize

    show_numbers("quantized", quantize(spec, announce))
