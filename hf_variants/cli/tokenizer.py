"""`hf-variants tokenizer report | sweep`: what tokenizers cost by language, and vocabularies trained on the spot."""

import json
from pathlib import Path
from typing import Annotated

import typer

from .console import announce, announce_files, check_plot, console

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Plot = Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")]


def add_to(app):
    commands = typer.Typer(no_args_is_help=True, help="Tokens per character and byte by language; what a vocabulary costs.")
    commands.command("report")(report)
    commands.command("sweep")(sweep)
    app.add_typer(commands, name="tokenizer")


def report(
    tokenizers: Annotated[list[str], typer.Argument(help="Directories or Hub ids of tokenizers.")],
    text: Annotated[
        list[str] | None, typer.Option(help="LANGUAGE=FILE, instead of the shipped sample; may be repeated.")
    ] = None,
    plot: Plot = None,
    as_json: Json = False,
):
    """Tokens per character and byte in English, Chinese, Japanese, Korean and code, or in texts of your own."""
    check_plot(plot)
    texts = None if not text else _named_files(text)
    from ..tokens import tokenizer_report
    from ..training.tokenizer import load_tokenizer

    rows = tokenizer_report({name: load_tokenizer(name) for name in tokenizers}, texts)
    if plot:
        from ..tokens.plots import plot_report

        plot_report(rows, plot)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    columns = ("tokenizer", "vocabulary", "language", "tokens", "per character", "per byte", "against English", "note")
    cells = []
    for row in rows:
        note = [] if row["lossless"] else ["loses text"]
        note += [f"{row['unknown']} unknown"] if row["unknown"] else []
        inflation = "" if row["inflation"] is None else f"{row['inflation']:.2f} x"
        numbers = (f"{row['tokens']:,}", f"{row['tokens_per_character']:.3f}", f"{row['tokens_per_byte']:.3f}")
        cells.append((row["tokenizer"], f"{row['vocabulary']:,}", row["language"], *numbers, inflation, ", ".join(note)))
    _table("tokens by language", columns, cells)
    if texts is None:
        announce("note: the shipped texts are short; give --text LANGUAGE=FILE for figures of your own data")
    announce_files(plot)


def sweep(
    files: Annotated[list[str], typer.Argument(help=".txt files whose documents are apart by blank lines.")],
    sizes: Annotated[str, typer.Option(help="Vocabulary sizes, apart by commas.")] = "1024,2048,4096,8192",
    config: Annotated[
        str, typer.Option(help="Preset, config file or checkpoint whose vocab_size is replaced.")
    ] = "quickstart",
    held_out: Annotated[float, typer.Option(help="Share of the characters that is measured and not learned from.")] = 0.1,
    document_bytes: Annotated[int, typer.Option(help="Length of text at which attention is counted.")] = 8192,
    max_table_parameters: Annotated[float | None, typer.Option(help="Budget of embedding and output projection.")] = None,
    plot: Plot = None,
    as_json: Json = False,
):
    """Train vocabularies of several sizes and compare what they cost per byte of text in a config."""
    check_plot(plot)
    numbers = _sizes(sizes)
    from ..convert.config_source import read_config
    from ..jobs.texts import documents
    from ..tokens import sweep_vocabulary
    from ..training.documents import split_documents

    model = read_config(config)
    texts = [text for file in files for text in documents(file, "FILES")]
    train, measured = split_documents(texts, held_out, seed=0)
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=as_json) as progress:
        task = progress.add_task("training tokenizers", total=len(numbers))
        costs, best = sweep_vocabulary(
            train, measured, numbers, model, document_bytes, max_table_parameters,
            progress=lambda done, total: progress.update(task, completed=done),
        )  # fmt: skip
    if plot:
        from ..tokens.plots import plot_sweep

        plot_sweep(costs, best, plot)
    if as_json:
        print(json.dumps({"best": best, "costs": [cost.as_dict() for cost in costs]}, indent=2))
        return
    from ..analysis.describe import human_bytes, human_count

    columns = ("vocabulary", "tokens / byte", "tables", "of all", "FLOPs / byte", "output", "attention", "KV cache")
    cells = [
        (
            f"{cost.vocabulary:,}" + (" *" if index == best else ""),
            f"{cost.tokens_per_byte:.4f}",
            human_count(cost.table_parameters),
            f"{cost.table_parameters / cost.parameters:.1%}",
            human_count(round(cost.forward_flops_per_byte)),
            f"{cost.output_flops_per_byte / cost.forward_flops_per_byte:.1%}",
            f"{cost.attention_flops_per_byte / cost.forward_flops_per_byte:.1%}",
            human_bytes(cost.kv_bytes_of_document),
        )
        for index, cost in enumerate(costs)
    ]
    _table(f"vocabularies in {config}, documents of {document_bytes:,} bytes", columns, cells)
    if best is None:
        announce(f"no vocabulary has tables within --max-table-parameters {max_table_parameters:,.4g}")
    else:
        announce("* fewest forward FLOPs per byte" + (" within the budget" if max_table_parameters else ""))
    announce_files(plot)


def _named_files(words):
    """{language: text} of `LANGUAGE=FILE` words. Raises ValueError for a language that is given twice."""
    named = [_named_file(word) for word in words]
    languages = [language for language, _ in named]
    for language in languages:
        if languages.count(language) > 1:
            raise ValueError(f"--text {language}= is given twice; join its files, or give each a name of its own")
    return dict(named)


def _named_file(word):
    language, _, file = word.partition("=")
    if not language or not Path(file).is_file():
        raise ValueError(f"--text {word!r} is not LANGUAGE=FILE with a file that exists")
    try:
        return language, Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--text {word!r} is not UTF-8 text: {error}") from None


def _sizes(text):
    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise ValueError(f"--sizes {text!r} must be whole numbers apart by commas, such as 1024,4096") from None


def _table(title, columns, rows):
    from rich.table import Table

    view = Table(title=title, title_justify="left")
    for column in columns:
        view.add_column(column, overflow="fold")
    for row in rows:
        view.add_row(*row)
    console.print(view)
