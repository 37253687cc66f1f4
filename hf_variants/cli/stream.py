"""`hf-variants stream`: perplexity of a text without end, with and without the first tokens kept."""

import json
from typing import Annotated

import typer

from .console import announce_files, check_plot, console


def add_to(app):
    app.command("stream")(stream)


def stream(
    model: Annotated[str, typer.Argument(help="Checkpoint of the family or of a native type.")],
    text: Annotated[str, typer.Option(help="Text file, read as one document.")],
    tokens: Annotated[int, typer.Option(help="Tokens of it to read.")] = 20_000,
    capacity: Annotated[int, typer.Option(help="Tokens that a query sees, first and latest together.")] = 1024,
    sinks: Annotated[list[int] | None, typer.Option(help="First tokens kept, one cache each; 0: the latest alone.")] = None,
    tokens_per_call: Annotated[int, typer.Option(help="Tokens per forward; changes the time, not the numbers.")] = 256,
    output: Annotated[str | None, typer.Option(help="Write the numbers to this .json file.")] = None,
    plot: Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
):
    """Perplexity over one long text in a cache of the first and latest tokens, and of the latest alone."""
    check_plot(plot)
    if output is not None:
        from ..report.output_file import check_output_path

        check_output_path("output", output, (".json",))
    sinks = sinks or [0, 4]
    if capacity < 1:
        raise ValueError(f"--capacity {capacity} must be at least 1")
    for count in sinks:
        if not 0 <= count < capacity:
            raise ValueError(f"--sinks {count} must be at least 0 and less than --capacity {capacity}")
    if len(set(sinks)) != len(sinks):
        raise ValueError(f"--sinks {sinks} names a cache twice")
    for name, value in (("--tokens", tokens), ("--tokens-per-call", tokens_per_call)):
        if value < 1:
            raise ValueError(f"{name} {value} must be at least 1")
    from rich.progress import Progress

    from ..evaluation.long_text import text_ids
    from ..evaluation.streaming import stream_edges, stream_perplexity
    from ..modeling.start_window_cache import StartWindowCache
    from ..quantize.checkpoint import check_one_stack, load_one_stack
    from ..training.stages import write_json
    from ..training.tokenizer import load_tokenizer

    check_one_stack(model)
    ids = text_ids(text, load_tokenizer(model), tokens)
    loaded = load_one_stack(model).float()
    for count in sinks:
        StartWindowCache(loaded.config, count, capacity - count)
    results = []
    with Progress(console=console, transient=True, disable=as_json) as progress:
        for count in sinks:
            task = progress.add_task(f"first {count} + latest {capacity - count:,}", total=tokens)
            tick = lambda done, total, task=task: progress.update(task, completed=done)  # noqa: E731
            results.append(stream_perplexity(loaded, ids, count, capacity - count, tokens_per_call, tick))
    edges = stream_edges(tokens, capacity)
    numbers = {"model": model, "text": text, "streams": [result.to_dict(edges) for result in results]}
    if output is not None:
        write_json(output, numbers)
    if plot:
        from ..report.streaming_plot import plot_streams

        plot_streams(results, plot)
    if as_json:
        print(json.dumps(numbers, indent=2))
        return
    _show(results, edges, tokens)
    announce_files(output, plot)


def _show(results, edges, tokens):
    from rich.table import Table

    view = Table("positions", title="perplexity of the tokens at", title_justify="left")
    for result in results:
        view.add_column(result.name, justify="right")
    rows = [*zip(*(result.by_position(edges) for result in results), strict=True)]
    for row in [*rows, tuple(result.by_position([0, tokens])[0] for result in results)]:
        view.add_row(f"{row[0]['start'] + 1:,} to {row[0]['end']:,}", *(f"{cell['perplexity']:,.4g}" for cell in row))
    view.add_row("cache (MB)", *(f"{result.cache_bytes / 1e6:.1f}" for result in results))
    console.print(view)
