"""`hf-variants diff`: the toggles in which two configs differ, and what they change in parameters, FLOPs and cache."""

import json
from typing import Annotated

import typer

from .config_words import config_words, note_quantized
from .console import announce_files, check_plot, console
from .describe import SOURCE_HELP, Dtype, Json, Plot
from .recipe_command import SETTINGS


def add_to(app):
    app.command("diff", context_settings=SETTINGS)(diff)


def diff(
    context: typer.Context,
    a: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    b: Annotated[str, typer.Argument(help="As A.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Keys of B to change first, dots reach into parts; also as --key value."
        ),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens at which FLOPs and cache are counted; default: the shorter context.")
    ] = None,
    dtype: Dtype = "bfloat16",
    plot: Plot = None,
    as_json: Json = False,
):
    """Compare two configs: toggles, parameters, FLOPs, cache. `diff NAME NAME KEY=VALUE` shows what a toggle changes."""
    check_plot(plot)
    from ..convert.config_source import read_config

    first, second = read_config(a), read_config(b, **config_words(context, words))
    note_quantized(a, b)
    from ..analysis.config_diff import diff_configs, diff_table

    facts = diff_configs(first, second, length, dtype)
    names = (a, f"{b}, changed" if words else b)
    if plot:
        from ..report.describe_plot import plot_diff

        plot_diff(facts, plot, names)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    console.print(diff_table(facts, names))
    announce_files(plot)
