"""`hf-variants generate`."""

from ..jobs.specs import GenerateSpec
from .console import announce
from .recipe_command import add_recipe_command


def add_to(app):
    add_recipe_command(app, "generate", GenerateSpec, run, "Continue prompts with a checkpoint.")


def run(spec):
    from ..jobs.generation import generate

    generate(spec, announce)
