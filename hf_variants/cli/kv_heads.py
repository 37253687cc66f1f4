"""`hf-variants kv-heads`: MHA to GQA to MQA, and back, with trained weights."""

import json
from typing import Annotated

import typer

from .console import announce, announce_files, check_plot, console, show_numbers
from .describe import Json, Plot


def add_to(app):
    app.command("kv-heads")(kv_heads)


def kv_heads(
    src: Annotated[str, typer.Argument(help="Checkpoint of the family or of a native type.")],
    dst: Annotated[str, typer.Argument(help="Folder to write.")],
    heads: Annotated[int, typer.Option(help="Key-value heads of the result: a multiple or a divisor of the present ones.")],
    method: Annotated[str, typer.Option(help="How heads are merged: mean, first or svd.")] = "mean",
    order: Annotated[str, typer.Option(help="Which are merged: kept (neighbours) or similar.")] = "kept",
    text: Annotated[str | None, typer.Option(help="Text file on which perplexity before and after is measured.")] = None,
    calibration: Annotated[str | None, typer.Option(help="Text file by whose activations errors are weighed.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens per row of either text.", show_default="512")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens of either text.", show_default="8192")] = None,
    plot: Plot = None,
    as_json: Json = False,
):
    """Change the number of key-value heads of a trained model: copies are exact, merged heads report their error."""
    check_plot(plot)
    from rich.progress import Progress

    from ..jobs.kv_heads import change_kv_heads
    from ..jobs.texts import documents

    named = {"--text": text, "--calibration": calibration}
    texts, rows = (None if path is None else documents(path, option) for option, path in named.items())
    say = (lambda text: None) if as_json else announce
    with Progress(console=console, transient=True, disable=as_json) as progress:
        task = progress.add_task("layers", total=None)
        tick = lambda done, total: progress.update(task, completed=done, total=total)  # noqa: E731
        facts = change_kv_heads(src, dst, heads, method, order, texts, rows, window, max_tokens, tick, say)
    if plot:
        from ..report.kv_heads_plot import plot_kv_heads

        plot_kv_heads(facts, plot, title=src)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    layers = facts["layers"]
    before, after = facts["kv_bytes_per_token"]
    numbers = {
        "method": facts["method"],
        "key error": f"{sum(layer['key_error'] for layer in layers) / len(layers):.4f} of the norm, mean of the layers",
        "value error": f"{sum(layer['value_error'] for layer in layers) / len(layers):.4f} of the norm, mean of the layers",
        "KV bytes per token": f"{before:,} -> {after:,}",
    }
    if "perplexity" in facts:
        numbers["perplexity"] = f"{facts['perplexity']['before']:.3f} -> {facts['perplexity']['after']:.3f}"
    show_numbers(f"written: {dst}", numbers)
    announce_files(plot)
