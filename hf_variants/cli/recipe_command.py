"""Turns a dataclass of keys and a job into a command: `recipe.yaml` (or `--config recipe.yaml`), then `key=value` or
`--key value`, the last one winning.

Notable here: the help text is generated from the dataclass, so every key that Python and YAML know stands in it.
"""

import json
from typing import Annotated

import typer
from rich.markup import escape

from ..report.output_file import check_output_folder
from ..training.spec_parsing import describe_keys, load_spec

Config = Annotated[str | None, typer.Option("--config", "-c", help="Recipe (YAML), as the first word does; see recipes/.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE.yaml] [KEY=VALUE]...",
        help="A recipe and keys over it, also as --key value; dots reach into sections.",
    ),
]
SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True}


def add_recipe_command(app, name, spec_class, run, summary, positional=()):
    """Add command `name` to a typer app: it builds `spec_class` and calls `run(spec)`.

    `positional` are keys that the first plain words stand for, so that `NAME SRC DST` needs no recipe.
    """

    def command(words: Words = None, config: Config = None):
        spec = load_spec(spec_class, config, name_places(words or (), positional))
        if getattr(spec, "output_dir", None):
            check_output_folder("output_dir", spec.output_dir)
        run(spec)

    command.__doc__ = help_text(summary, spec_class)
    app.command(name, context_settings=SETTINGS)(command)


def name_places(words, positional):
    """Words whose first plain ones are written as `key=value`; a recipe is no plain word."""
    words, named = list(words), []
    for key in positional:
        if not words or words[0].startswith("-") or "=" in words[0] or words[0].endswith((".yaml", ".yml")):
            break
        # quoted, so that a folder called 64 stays a folder
        named.append(f"{key}={json.dumps(words.pop(0))}")
    return named + words


def help_text(summary, spec_class):
    """The summary and a line per key."""
    rows = describe_keys(spec_class)
    lines = [f"{key} ({kind}, {_default_words(default)}): {help}" for key, kind, default, help in rows]
    # typer reads help as rich markup, in which [values] would be a style and vanish
    return "\n".join([summary, "", "\b", "Keys:", *(f"  {escape(line)}" for line in lines)])


def _default_words(default):
    return default if default == "required" else f"default {default or 'empty'}"
