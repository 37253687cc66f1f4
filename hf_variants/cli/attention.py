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
    text: Annotated[str, typer.Option(help="Text file to read.")],
    rows: Annotated[int, typer.Option(help="Rows of text.")] = 4,
    length: Annotated[int, typer.Option(help="Tokens per row.")] = 256,
    sink_tokens: Annotated[int, typer.Option(help="First tokens that count as a sink.")] = 1,
    maps: Annotated[int | None, typer.Option(help="Draw the maps of this layer instead of the overview.")] = None,
    plot: Plot = None,
    as_json: Json = False,
):
    """Entropy against its bound, sink mass, largest logits and redundancy of every head, on text."""
    check_plot(plot)
    if maps is not None and plot is None:
        raise ValueError(f"--maps {maps} draws a figure; name its file with --plot")
    for name, value, least in (("--rows", rows, 1), ("--length", length, 2), ("--sink-tokens", sink_tokens, 0)):
        if value < least:
            raise ValueError(f"{name} {value} must be at least {least}")
    from ..diagnostics import attention_report
    from ..jobs.quantization import calibration_ids
    from ..quantize.checkpoint import load_one_stack
    from ..training.documents import read_documents
    from ..training.specs import DataSpec
    from ..training.tokenizer import load_tokenizer

    loaded = load_one_stack(model).float()
    documents = list(read_documents(DataSpec(source=text)))
    layers = loaded.config.num_hidden_layers
    if maps is not None and not 0 <= maps < layers:
        raise ValueError(f"--maps {maps}: the model has layers 0 to {layers - 1}")
    ids = calibration_ids(documents, load_tokenizer(model), rows, length)
    report = attention_report(loaded, ids, sink_tokens, keep_maps=maps is not None)
    if plot:
        from ..diagnostics.plots import plot_heads, plot_maps

        plot_heads(report, plot) if maps is None else plot_maps(report, maps, plot)
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
        return
    from rich.table import Table

    view = Table(title=f"attention on {report.tokens:,} tokens, means of each layer's heads", title_justify="left")
    names = ("entropy", "bound", "sink_mass", "learned_sink_mass", "distance")
    for column in ("layer", *(name.replace("_", " ") for name in names), "max logit", "most alike heads"):
        view.add_column(column, justify="right")
    for layer in range(layers):
        own = [row for row in report.heads if row["layer"] == layer]
        cells = [f"{sum(row[name] for row in own) / len(own):.3f}" for name in names]
        top = max(row["max_logit"] for row in own)
        capped = max(row["max_capped_logit"] for row in own)
        logit = f"{top:.1f}" if top == capped else f"{top:.1f} (capped {capped:.1f})"
        view.add_row(str(layer), *cells, logit, f"{max(row['redundancy'] for row in own):.3f}")
    console.print(view)
    announce_files(plot)


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
