"""`hf-variants attention` and `hf-variants receptive-field`: what heads do on text, and how far a stack sees."""

import json
from typing import Annotated

import typer

from ..training.spec_parsing import parse_words
from .console import announce, announce_files, check_plot, console, show_numbers
from .recipe_command import SETTINGS

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Plot = Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")]


def add_to(app):
    app.command("attention")(attention)
    app.command("receptive-field", context_settings=SETTINGS)(receptive_field)


def attention(
    model: Annotated[str, typer.Argument(help="Checkpoint of the family or of a native type.")],
    text: Annotated[
        str, typer.Option(help="File to read: text; for an encoder-decoder a text per line, or pairs; a prompt with --image.")
    ],
    target: Annotated[
        str | None, typer.Option(help="What the decoder of an encoder-decoder writes, line by line; else it writes itself.")
    ] = None,
    image: Annotated[list[str] | None, typer.Option(help="Picture file; once per image, in order.")] = None,
    rows: Annotated[int | None, typer.Option(help="Rows of text.", show_default="4")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens per row; at most, of pairs.", show_default="256")] = None,
    sink_tokens: Annotated[int, typer.Option(help="First tokens that count as a sink.")] = 1,
    maps: Annotated[int | None, typer.Option(help="Draw the maps of this layer instead of the overview.")] = None,
    plot: Plot = None,
    as_json: Json = False,
):
    """Entropy against its bound, sink mass, largest logits and redundancy of every head, on text and images."""
    check_plot(plot)
    if maps is not None and plot is None:
        raise ValueError(f"--maps {maps} draws a figure; name its file with --plot")
    for name, value, least in (
        ("--rows", rows, 1),
        ("--length", length, 2),
        ("--sink-tokens", sink_tokens, 1),
        ("--maps", maps, 0),
    ):
        if value is not None and value < least:
            raise ValueError(f"{name} {value} must be at least {least}")
    from ..jobs.attention import measure_attention

    options = {"rows": rows, "length": length, "sink_tokens": sink_tokens, "maps": maps}
    tell = (lambda line: None) if as_json else announce
    reports = measure_attention(model, text, target, image or (), **options, tell=tell)
    if plot:
        from ..diagnostics.plots import plot_heads, plot_maps

        plot_heads(reports, plot) if maps is None else plot_maps(reports, maps, plot)
    if as_json:
        plain = {kind: report.as_dict() for kind, report in reports.items()}
        print(json.dumps(plain["self"] if list(plain) == ["self"] else plain, indent=2))
        return
    for report in reports.values():
        console.print(_table(report))
    announce_files(plot)


def _table(report):
    """Means of each layer's heads."""
    from rich.table import Table

    from ..diagnostics.attention_kinds import KINDS

    view = Table(title=f"{KINDS[report.kind]} on {report.tokens:,} tokens, means of each layer's heads", title_justify="left")
    known = ("entropy", "bound", "sink_mass", "learned_sink_mass", "distance", "image_mass", "even_image_mass")
    names = [name for name in known if name in report.heads[0]]
    if not any(row["learned_sink_mass"] > 1e-6 for row in report.heads):
        names.remove("learned_sink_mass")
    for column in ("layer", *(name.replace("_", " ") for name in names), "max logit", "most alike heads"):
        view.add_column(column, justify="right")
    for layer in report.layers:
        own = [row for row in report.heads if row["layer"] == layer]
        cells = [f"{sum(row[name] for row in own) / len(own):.3f}" for name in names]
        top = max(row["max_logit"] for row in own)
        capped = max(row["max_capped_logit"] for row in own)
        notes = [f"capped {capped:.1f}"] if top != capped else []
        before = max(row["max_unnormed_logit"] for row in own)
        notes += [f"without norm {before:.1f}"] if top != before else []
        logit = f"{top:.1f}" + (f" ({', '.join(notes)})" if notes else "")
        view.add_row(str(layer), *cells, logit, f"{max(row['redundancy'] for row in own):.3f}")
    return view


def receptive_field(
    model: Annotated[str, typer.Argument(help="Preset, config file or checkpoint folder; weights are drawn anew.")],
    words: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the config.")] = None,
    length: Annotated[int, typer.Option(help="Tokens of the row.")] = 64,
    plot: Plot = None,
    as_json: Json = False,
):
    """First position that the last one sees: counted from the layers, and measured by changing tokens one by one."""
    check_plot(plot)
    from rich.progress import Progress

    from ..analysis import count_parameters
    from ..convert.config_source import read_config
    from ..diagnostics import receptive_field as measure

    config = read_config(model, **dict(parse_words(words or ())))
    if len(config.stacks) > 1:
        raise ValueError(
            f"{model} is an encoder-decoder, whose rows see two inputs; give its decoder or encoder as a .json alone"
        )
    size = count_parameters(config).total
    if size > 2e8:
        raise ValueError(
            f"{model} has {size:,} parameters; a receptive field depends on the layers alone, so shrink it by KEY=VALUE words "
            "such as hidden_size=64 intermediate_size=128"
        )
    import torch

    from ..modeling.modeling_variants import VariantsModel

    torch.manual_seed(0)
    with Progress(console=console, transient=True, disable=as_json) as progress:
        task = progress.add_task("changing tokens", total=length)
        field = measure(VariantsModel(config), length, progress=lambda done, total: progress.update(task, completed=done))
    if plot:
        from ..diagnostics.plots import plot_receptive_field

        plot_receptive_field(field, plot)
    if as_json:
        print(json.dumps(field.as_dict(), indent=2))
        return
    seen = None if field.measured_first is None else length - field.measured_first
    show_numbers(
        f"receptive field of position {length - 1}",
        {
            "predicted from the layers": f"from position {field.predicted_first} ({length - field.predicted_first} tokens)",
            "measured": "nothing" if seen is None else f"from position {field.measured_first} ({seen} tokens)",
        },
    )
    if field.predicted_first == 0:
        announce("note: the whole row is seen; a longer row (--length) would show the edge, if there is one")
    announce_files(plot)
