"""`hf-variants quality-of-quantization`: the error of every quantized Linear against its source, plain and on real text."""

import json
from typing import Annotated

import typer

from .console import announce_files, check_plot, console
from .describe import Json


def add_to(app):
    app.command("quality-of-quantization")(quality_of_quantization)


def quality_of_quantization(
    source: Annotated[str, typer.Argument(help="Checkpoint in full precision, of the family or of a native type.")],
    quantized: Annotated[str, typer.Argument(help="Its AWQ or bitsandbytes checkpoint; or nf4, nf4-double or int8.")],
    calibration: Annotated[
        str | None, typer.Option(help="Text file on which inputs are taken; without, weights alone.")
    ] = None,
    window: Annotated[int | None, typer.Option(help="Tokens per row of the text; default 512.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens of the text; default 8192.")] = None,
    worst: Annotated[int, typer.Option(help="How many Linears to name, those with the largest errors first.")] = 8,
    plot: Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")] = None,
    as_json: Json = False,
):
    """Per-layer error of a quantized checkpoint: relative norm and signal-to-noise of weights, and of outputs on text."""
    check_plot(plot)
    if worst < 1:
        raise ValueError(f"--worst {worst} must be at least 1")
    from rich.progress import Progress

    from ..jobs.quantization_quality import measure_quality

    with Progress(console=console, transient=True, disable=as_json) as progress:
        task = progress.add_task("layers", total=None)
        tick = lambda done, total: progress.update(task, completed=done, total=total)  # noqa: E731
        facts = measure_quality(source, quantized, calibration, window, max_tokens, tick)
    if plot:
        from ..report.quality_plot import plot_quality

        plot_quality(facts, plot)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    _show(facts, worst)
    announce_files(plot)


def _show(facts, worst):
    from rich.table import Table

    columns = ("weights", "dB", *(("outputs on text", "dB") if facts["tokens"] else ()))
    tables = []
    rows = [("all", facts["overall"]), *((f"layer {row['layer']}", row) for row in facts["layers"])]
    ranked = sorted(facts["linears"], key=lambda row: -(row["weighted_error"] or 0 if facts["tokens"] else row["error"]))
    for title, entries in (
        (f"{facts['quantized']} ({facts['method']}) against {facts['source']}", rows),
        ("largest errors", [(row["name"], row) for row in ranked[:worst]]),
    ):
        table = Table(title=title, title_justify="left", caption_justify="left")
        table.add_column("")
        for column in columns:
            table.add_column(column, justify="right")
        for name, row in entries:
            cells = [f"{row['error']:.4f}", _decibels(row["snr_db"])]
            if facts["tokens"]:
                cells += [_share(row["weighted_error"]), _decibels(row["weighted_snr_db"])]
            table.add_row(name, *cells)
        tables.append(table)
    tables[-1].caption = _words(facts)
    for table in tables:
        console.print(table)


def _share(value):
    return "no token" if value is None else f"{value:.5f}"


def _decibels(value):
    return "" if value is None else f"{value:.1f}"


def _words(facts):
    text = "weights: norm of the error beside that of the matrix."
    if facts["tokens"]:
        text += f" outputs: squared error beside the squared output, over {facts['tokens']:,} tokens."
    estimated = sum(row["scales"] == "estimated" for row in facts["linears"])
    if estimated:
        text += f" The scales that AWQ moved were estimated for {estimated} Linears."
    dense = facts["left_dense"]
    if dense:
        text += f" Left dense: {', '.join(dense[:4])}{f' and {len(dense) - 4} more' if len(dense) > 4 else ''}."
    return text
