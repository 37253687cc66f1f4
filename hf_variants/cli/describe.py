"""`hf-variants describe`: the choices, layers and costs of a config, without building the model."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..training.spec_parsing import parse_words
from .console import console
from .recipe_command import SETTINGS


def add_to(app):
    app.command("describe", context_settings=SETTINGS)(describe)


def describe(
    model: Annotated[str, typer.Argument(help="Preset of model_configs/, a config .json, or a checkpoint directory.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the config, also as --key value.")
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens at which FLOPs and cache are counted; 0: the context.")] = 0,
    dtype: Annotated[str, typer.Option(help="dtype of weights and cache.")] = "bfloat16",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
):
    """Show toggles, parameters, layers, FLOPs and cache of a config; KEY=VALUE words change it first."""
    from ..analysis.describe import describe as count
    from ..analysis.describe import describe_table

    config = read_config(model, dict(parse_words(words or ())))
    if as_json:
        print(json.dumps(count(config, length or None, dtype), indent=2))
    else:
        console.print(describe_table(config, length or None, dtype, title=model))


def read_config(model, overrides):
    """`VariantsConfig` of a preset, file or directory with single keys replaced. Raises ValueError for unknown
    ones.
    """
    from ..training.models import model_section

    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    keys = model_section(str(path) if path.suffix == ".json" else model)
    kind = keys.pop("model_type", "variants")
    if kind != "variants":
        raise ValueError(f"{model}: model_type={kind!r} is not of this family; convert it first")
    from ..modeling.configuration_variants import VariantsConfig

    return VariantsConfig(**{**keys, **overrides})
