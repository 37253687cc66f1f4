"""`hf-variants pretrain`."""

from ..jobs.specs import TrainingSpec
from .console import announce, show_numbers
from .recipe_command import add_recipe_command


def add_to(app):
    add_recipe_command(
        app,
        "pretrain",
        TrainingSpec,
        run,
        "Train a tokenizer, pack documents, pretrain a model; continues where it stopped.",
    )


def run(spec):
    from ..jobs.pretraining import pretrain

    show_numbers("pretrained", pretrain(spec, announce))
