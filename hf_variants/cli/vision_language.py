"""`hf-variants vision-language`."""

from ..jobs.specs import VisionLanguageSpec
from .console import announce, show_numbers
from .recipe_command import add_recipe_command


def add_to(app):
    add_recipe_command(
        app,
        "vision-language",
        VisionLanguageSpec,
        run,
        "Train a vision-language model on questions about hand-written digits, in phases, and report what it answers.",
    )


def run(spec):
    from ..jobs.vision import vision_language

    result = vision_language(spec, announce)
    for name, found in result["accuracies"].items():
        show_numbers(name, {kind: f"{value:.1%}" for kind, value in found.items() if kind != "answers"})
