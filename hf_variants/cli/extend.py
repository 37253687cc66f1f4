"""`hf-variants extend`."""

from ..jobs.specs import ExtendSpec
from .console import announce, show_methods, show_numbers
from .recipe_command import add_recipe_command


def add_to(app):
    add_recipe_command(
        app,
        "extend",
        ExtendSpec,
        run,
        "Extend the context of a checkpoint: compare scalings, then fine-tune with one.",
    )


def run(spec):
    from ..jobs.extension import extend

    result = extend(spec, announce)
    show_methods(result)
    show_numbers("extended", result)
