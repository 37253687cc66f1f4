"""Figures of attention: heads as a heat map of layers by heads, single maps, and a receptive field."""

import math

from ..report.plot_file import save_plot
from ..report.plots import COLOURS

# field of a head -> title
QUANTITIES = {
    "entropy_share": "entropy / log(visible keys)",
    "sink_mass": "weight on the first tokens",
    "redundancy": "likeness to another head",
    "max_logit": "largest logit",
}


def plot_heads(report, path):
    """Four heat maps, layers by heads."""
    layers = sorted({row["layer"] for row in report.heads})
    heads = 1 + max(row["head"] for row in report.heads)

    def draw(axes):
        for axis, (name, title) in zip(axes, QUANTITIES.items(), strict=True):
            grid = [[math.nan] * heads for _ in layers]
            for row in report.heads:
                grid[layers.index(row["layer"])][row["head"]] = row[name]
            image = axis.imshow(grid, aspect="auto", cmap="viridis", origin="lower")
            axis.set(title=title, xlabel="head", ylabel="layer")
            axis.grid(visible=False)
            axis.figure.colorbar(image, ax=axis)

    return save_plot(draw, path, width=16, columns=len(QUANTITIES))


def plot_maps(report, layer, path):
    """Mean attention maps of the heads of one layer. Raises ValueError where they were not kept."""
    if report.maps is None:
        raise ValueError("the report holds no maps; measure with keep_maps=True")
    maps = report.maps[layer]
    columns = min(len(maps), 5)
    rows = -(-len(maps) // columns)

    def draw(axes):
        axes = axes if isinstance(axes, list) else [axes]
        for axis in axes[len(maps) :]:
            axis.set_visible(False)
        for head, (axis, weights) in enumerate(zip(axes, maps, strict=False)):
            image = axis.imshow(weights.clamp_min(1e-6).log10().numpy(), cmap="magma", vmin=-4, vmax=0)
            axis.set_title(f"layer {layer}, head {head}", fontsize=9)
            axis.set(xlabel="key" if head + columns >= len(maps) else "", ylabel="" if head % columns else "query")
            axis.grid(visible=False)
        bar = axes[0].figure.colorbar(image, ax=axes, shrink=0.8)
        bar.set_ticks([-4, -3, -2, -1, 0], labels=["≤ 0.0001", "0.001", "0.01", "0.1", "1"])

    return save_plot(draw, path, width=2.2 * columns + 1.2, height=2.4 * rows + 0.3, columns=columns, rows=rows)


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
