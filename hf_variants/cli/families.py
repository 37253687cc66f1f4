"""`hf-variants families`: the native families that convert, what each uses of the toggles, and why others are left out."""

import json
from typing import Annotated

import typer

from .console import console
from .describe import Json


def add_to(app):
    app.command("families")(families)


def families(
    name: Annotated[str | None, typer.Argument(help="One model type of transformers; without it, all of them.")] = None,
    as_json: Json = False,
):
    """List native families with the toggles each uses and refuses, and the ones left out with the reason."""
    from ..convert.family_table import all_families, family_facts

    facts = all_families() if name is None else family_facts(name)
    if as_json:
        print(json.dumps(facts, indent=2))
    elif name is None:
        show_all(facts)
    else:
        show_one(facts)


def show_all(facts):
    """A table of the families and one of those left out."""
    from rich.table import Table

    known, out = Table(title_justify="left"), Table(title_justify="left")
    known.title = f"{len(facts['families'])} families convert in both directions"
    out.title = f"{len(facts['left_out'])} are left out"
    for table, columns in ((known, ("family", "toggles of its default config")), (out, ("family", "what no toggle means"))):
        for column in columns:
            table.add_column(column, no_wrap=column == "family")
    for row in facts["families"]:
        known.add_row(row["model_type"], ", ".join(row["toggle_words"]) or "none")
    for name, reason in facts["left_out"].items():
        out.add_row(name, reason)
    console.print(known, out, sep="\n\n")


def show_one(facts):
    """What one family is, uses and refuses."""
    from rich.table import Table

    from ..analysis.config_diff import short_value

    table = Table(show_header=False, title=facts["model_type"], title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    if not facts["converts"]:
        table.add_row("left out", f"no toggle means {facts['reason']}")
        console.print(table)
        return
    table.add_row("what it is", facts["meaning"])
    table.add_section()
    for key, value in facts["toggles"].items():
        table.add_row(key, short_value(value))
    if not facts["toggles"]:
        table.add_row("toggles", "none in its default config")
    table.add_section()
    for key, reason in facts["refused"].items():
        table.add_row(f"refused: {key}", reason)
    if not facts["refused"]:
        table.add_row("refused", "nothing")
    for key, what in facts["untrained"].items():
        table.add_row(f"in native training alone: {key}", what)
    console.print(table)
