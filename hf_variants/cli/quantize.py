"""`hf-variants quantize SRC DST --method awq`, or with a recipe as every command."""

from ..jobs.specs import QuantizeSpec
from .console import announce, show_numbers
from .recipe_command import add_recipe_command

_SUMMARY = """Quantize a checkpoint to 4 bits (AWQ or rounding) or to 8 (int8).

SRC DST --method awq --group-size 64 --calibration FILE, or a recipe and KEY=VALUE words; the keys are the same."""
_PLACES = ("model_path", "output_dir")


def add_to(app):
    add_recipe_command(app, "quantize", QuantizeSpec, run, _SUMMARY, positional=_PLACES)


def run(spec):
    from ..jobs.quantization import quantize

    result = quantize(spec, announce)
    show_numbers("quantized", result)
    if result.get("perplexity"):
        show_numbers("perplexity", result["perplexity"])
    if result.get("divergence"):
        show_numbers("divergence from full precision (KL, nats per token)", result["divergence"])
    if result.get("starved_experts"):
        show_numbers(
            "experts with too few calibration tokens",
            {name: result["tokens_per_expert"][name] for name in result["starved_experts"]},
        )
