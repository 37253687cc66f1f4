"""`hf-variants evaluate`."""

from ..jobs.specs import EvaluateSpec
from .console import announce, show_numbers
from .recipe_command import add_recipe_command


def add_to(app):
    add_recipe_command(
        app, "evaluate", EvaluateSpec, run, "Perplexity, bits per byte and perplexity by position of a checkpoint."
    )


def run(spec):
    from ..jobs.evaluation import evaluate

    show_numbers("evaluated", evaluate(spec, announce))
