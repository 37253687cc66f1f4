"""`hf-variants finetune`."""

from ..jobs.specs import FinetuneSpec
from .console import announce, show_numbers
from .recipe_command import add_recipe_command


def add_to(app):
    add_recipe_command(
        app,
        "finetune",
        FinetuneSpec,
        run,
        "Fine-tune a checkpoint on chats, preferences, text or classes; whole, or by LoRA, DoRA or QLoRA.",
    )


def run(spec):
    from ..jobs.finetuning import finetune

    result = finetune(spec, announce)
    show_numbers("before", result["before"])
    show_numbers("after", result["after"])
