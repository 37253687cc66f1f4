"""`hf-variants count`: parameters by part, and FLOPs per token forward, backward and while decoding, at any lengths."""

import json
from typing import Annotated

import typer

from .config_words import config_words, note_quantized
from .console import announce_files, check_plot, console
from .describe import SOURCE_HELP, Json
from .recipe_command import SETTINGS


def add_to(app):
    app.command("count", context_settings=SETTINGS)(count)


def count(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the config, dots reach into parts; also as --key value."),
    ] = None,
    length: Annotated[
        list[int] | None, typer.Option(help="Tokens of a row; may be given several times. Default: a few up to the context.")
    ] = None,
    pairs: Annotated[
        str, typer.Option(help="visible: what the masks let through; all: every pair, as the eager backend computes.")
    ] = "visible",
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Count the layers' second forward pass under activation checkpointing.")
    ] = False,
    encoder_length: Annotated[
        int | None, typer.Option(help="Tokens that an encoder reads for a row; default: as many as the row.")
    ] = None,
    images: Annotated[int | None, typer.Option(help="Images in a row of a vision-language model; default: one.")] = None,
    plot: Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")] = None,
    as_json: Json = False,
):
    """Parameters by part, total and active, and FLOPs per token forward, backward and decoding, without building a model."""
    check_plot(plot)
    from ..convert.config_source import read_any_config

    config = read_any_config(model, **config_words(context, words))
    note_quantized(model)
    from ..analysis.count import count as count_config
    from ..analysis.count import count_table

    options = {"encoder_length": encoder_length, "images": images}
    facts = count_config(config, length or None, pairs=pairs, checkpointing=checkpointing, **options)
    if plot:
        from ..report.count_plot import plot_count

        plot_count(facts, plot, title=model)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    console.print(count_table(facts, title=model))
    announce_files(plot)
