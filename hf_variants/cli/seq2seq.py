"""`hf-variants seq2seq`."""

from ..jobs.specs import Seq2SeqSpec
from .console import announce, show_numbers
from .recipe_command import add_recipe_command


def add_to(app):
    add_recipe_command(
        app,
        "seq2seq",
        Seq2SeqSpec,
        run,
        "Teach an encoder-decoder to write targets from sources; measured by BLEU, chrF and exact match.",
    )


def run(spec):
    from ..jobs.sequences import seq2seq

    result = seq2seq(spec, announce)
    show_numbers("held-out pairs", result["held_out"])
    announce(f"written: {result['report']}")
