"""`hf-variants extrapolate`."""

from ..jobs.specs import ExtrapolateSpec
from .console import announce
from .recipe_command import add_recipe_command


def add_to(app):
    add_recipe_command(
        app,
        "extrapolate",
        ExtrapolateSpec,
        run,
        "Train models that tell positions in different ways at one length, and measure perplexity at longer ones.",
    )


def run(spec):
    from ..jobs.extrapolation import extrapolate

    extrapolate(spec, announce)
