"""`hf-variants ablate`."""

from ..jobs.specs import AblateSpec
from .console import announce
from .recipe_command import add_recipe_command


def add_to(app):
    add_recipe_command(
        app,
        "ablate",
        AblateSpec,
        run,
        "Train single changes of a base at an equal budget over several seeds, and say which differences are noise.",
    )


def run(spec):
    from ..jobs.ablation import ablate

    ablate(spec, announce)
