"""`hf-variants image-cost` and `hf-variants image-attention`: what images cost, and how text attends to them."""

import json
from typing import Annotated

import typer

from .console import announce_files, check_plot, console

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Plot = Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")]


def add_to(app):
    app.command("image-cost")(image_cost)
    app.command("image-attention")(image_attention)


def image_cost(
    model: Annotated[str, typer.Argument(help="Folder or config.json of a vision-language model; weights are drawn anew.")],
    images: Annotated[str, typer.Option(help="Numbers of images.")] = "1,2,4,8",
    compression: Annotated[str, typer.Option(help="Ways of compressing; own is that of the model.")] = "own",
    text_tokens: Annotated[int, typer.Option(help="Tokens of text beside the images.")] = 32,
    dtype_bytes: Annotated[int, typer.Option(help="Bytes of a number in the cache.")] = 2,
    measure: Annotated[bool, typer.Option(help="Also time a forward of each prompt.")] = False,
    plot: Plot = None,
    as_json: Json = False,
):
    """Operations, cache bytes and time of a prompt, by the number of images and by compression."""
    check_plot(plot)
    from ..jobs.image_reports import image_costs

    costs = image_costs(model, _numbers(images), compression.split(","), text_tokens, dtype_bytes, measure)
    if plot:
        from ..diagnostics.image_plots import plot_costs

        plot_costs(costs, plot)
    if as_json:
        print(json.dumps([cost.as_dict() for cost in costs], indent=2))
        return
    from rich.table import Table

    view = Table(title=f"a prompt of {text_tokens} text tokens and images", title_justify="left")
    parts = list(costs[-1].flops)
    # one column for all shares: a terminal has room for a few
    shares = f"% of {', '.join(name.replace('_', ' ') for name in parts)}"
    for column in ("compression", "images", "tokens", "MFLOPs", shares, "cache KiB", *(["ms"] if measure else [])):
        view.add_column(column, justify="right")
    for cost in costs:
        spread = " ".join(f"{100 * cost.flops.get(name, 0) / cost.total_flops:3.0f}" for name in parts)
        cells = [cost.compression, str(cost.images), str(cost.length), f"{cost.total_flops / 1e6:,.1f}", spread]
        cells.append(f"{cost.cache_bytes / 1024:,.1f}")
        view.add_row(*cells, *([f"{1000 * cost.seconds:.1f}"] if measure else []))
    console.print(view)
    announce_files(plot)


def image_attention(
    model: Annotated[str, typer.Argument(help="Folder of a vision-language model with its processor.")],
    text: Annotated[str, typer.Option(help="Text with <image> where an image is.")],
    image: Annotated[list[str], typer.Option(help="Picture file; once per image, in order.")],
    plot: Plot = None,
    as_json: Json = False,
):
    """Entropy of the text's attention against log(N + j), and its share on images, by layer."""
    check_plot(plot)
    from ..jobs.image_reports import attention_to_images

    readings = attention_to_images(model, text, image)
    if plot:
        from ..diagnostics.image_plots import plot_readings

        plot_readings(readings, plot)
    if as_json:
        print(json.dumps([reading.as_dict() for reading in readings], indent=2))
        return
    from rich.table import Table

    view = Table(title="text tokens behind an image, means over heads; entropies in nats", title_justify="left")
    names = [name for name in readings[0].as_dict() if any(getattr(reading, name) is not None for reading in readings)]
    for name in names:
        view.add_column(name.replace("_", " "), justify="right")
    for reading in readings:
        values = [getattr(reading, name) for name in names]
        view.add_row(
            *("" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value) for value in values)
        )
    console.print(view)
    announce_files(plot)


def _numbers(text):
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"--images {text!r} must be whole numbers with commas between them, as 1,2,4") from None
    return numbers
