"""`hf-variants describe`: the choices, layers and costs of a config, without building the model or reading weights."""

import json
from typing import Annotated

import typer

from .config_words import config_words, note_quantized
from .console import announce_files, check_plot, console
from .recipe_command import SETTINGS

SOURCE_HELP = "Preset, config .json, folder, or Hub id; of this family or of a native one."
Length = Annotated[int | None, typer.Option(help="Tokens at which FLOPs and cache are counted; default: the context.")]
Dtype = Annotated[str, typer.Option(help="dtype of weights and cache.")]
Plot = Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def add_to(app):
    app.command("describe", context_settings=SETTINGS)(describe)


def describe(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the config, dots reach into parts; also as --key value."),
    ] = None,
    length: Length = None,
    dtype: Dtype = "bfloat16",
    plot: Plot = None,
    as_json: Json = False,
):
    """Show diagram, toggles, parameters, layers, FLOPs and cache of a config; KEY=VALUE words change it first."""
    check_plot(plot)
    from ..convert.config_source import read_config

    config = read_config(model, **config_words(context, words))
    note_quantized(model)
    from ..analysis.describe import describe as count
    from ..analysis.describe import facts_table, native_families

    facts = {**count(config, length, dtype), "native_families": native_families(config)}
    if plot:
        from ..report.describe_plot import plot_description

        plot_description(facts, plot, title=model)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    console.print(facts_table(config, facts, title=model))
    announce_files(plot)
