"""Figures of attention: heads as a heat map of layers by heads, single maps, and a receptive field."""

import math

from ..report.plot_file import save_plot
from ..report.plots import COLOURS
from .attention_kinds import KINDS

# field of a head -> title
QUANTITIES = {
    "entropy_share": "entropy / log(visible keys)",
    "sink_mass": "weight on the first tokens",
    "redundancy": "likeness to another head",
    "max_logit": "largest logit",
    "image_mass": "weight on images",
}


def plot_heads(reports, path):
    """Heat maps of layers by heads, a row of them for each kind of attention.

    Args:
        reports: an `AttentionReport`, or {kind: report}.
    """
    reports = _by_kind(reports)
    names = [name for name in QUANTITIES if any(name in report.heads[0] for report in reports.values())]

    def draw(axes):
        for number, (report, name) in enumerate((report, name) for report in reports.values() for name in names):
            axis, layers = axes[number], report.layers
            if name not in report.heads[0]:
                axis.set_visible(False)
                continue
            grid = [[math.nan] * _heads(report) for _ in layers]
            for row in report.heads:
                grid[layers.index(row["layer"])][row["head"]] = row[name]
            image = axis.imshow(grid, aspect="auto", cmap="viridis", origin="lower")
            axis.set(title=QUANTITIES[name], xlabel="head", ylabel="layer")
            if len(layers) < 12:
                axis.set_yticks(range(len(layers)), labels=layers)
            if len(reports) > 1 and name == names[0]:
                axis.set_ylabel(f"{KINDS[report.kind]}\nlayer")
            axis.grid(visible=False)
            axis.figure.colorbar(image, ax=axis)

    height = 4.6 if len(reports) == 1 else 3.2 * len(reports)
    return save_plot(draw, path, width=4 * len(names), height=height, columns=len(names), rows=len(reports))


def plot_maps(reports, layer, path):
    """Mean attention maps of the heads of one layer, of each kind of attention that the layer has.

    Args:
        reports: an `AttentionReport`, or {kind: report}.

    Raises:
        ValueError: where maps were not kept, or no such layer has any.
    """
    reports = _by_kind(reports)
    if any(report.maps is None for report in reports.values()):
        raise ValueError("the report holds no maps; measure with keep_maps=True")
    own = {kind: report for kind, report in reports.items() if layer in report.layers}
    if not own:
        raise ValueError(f"layer={layer} has no attention here; choose from {next(iter(reports.values())).layers}")
    columns = min(max(map(_heads, own.values())), 5)
    panels = []
    for kind, report in own.items():
        maps = report.maps[report.layers.index(layer)]
        name = f"{kind}, " if len(reports) > 1 else ""
        panels += [(f"{name}layer {layer}, head {head}", weights) for head, weights in enumerate(maps)]
        panels += [None] * (-len(panels) % columns)
    rows = len(panels) // columns

    def draw(axes):
        axes = axes if isinstance(axes, list) else [axes]
        for number, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
            if panel is None:
                axis.set_visible(False)
                continue
            title, weights = panel
            image = axis.imshow(weights.clamp_min(1e-6).log10().numpy(), cmap="magma", vmin=-4, vmax=0, aspect="auto")
            axis.set_title(title, fontsize=9)
            below = panels[number + columns] if number + columns < len(panels) else None
            axis.set(xlabel="key" if below is None else "", ylabel="" if number % columns else "query")
            axis.grid(visible=False)
        bar = axes[0].figure.colorbar(image, ax=axes, shrink=0.8)
        bar.set_ticks([-4, -3, -2, -1, 0], labels=["≤ 0.0001", "0.001", "0.01", "0.1", "1"])

    return save_plot(draw, path, width=2.2 * columns + 1.2, height=2.4 * rows + 0.3, columns=columns, rows=rows)


def _by_kind(reports):
    return reports if isinstance(reports, dict) else {reports.kind: reports}


def _heads(report):
    return 1 + max(row["head"] for row in report.heads)


def plot_receptive_field(field, path):
    """Influence of every position on the last, with the predicted edge."""

    def draw(axes):
        places = range(field.length)
        axes.bar(places, field.influence, width=1.0, color=COLOURS[0])
        axes.axvline(
            field.predicted_first - 0.5, color=COLOURS[1], linestyle=":", label=f"predicted: from {field.predicted_first}"
        )
        if max(field.influence) > 0:
            axes.set_yscale("log")
        axes.set(
            xlabel="changed position",
            ylabel="relative change of the last output",
            title="receptive field of the last position",
        )
        axes.legend(frameon=False)

    return save_plot(draw, path)
