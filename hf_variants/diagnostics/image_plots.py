"""Figures of images in language models: cost by their number and compression, and attention to them by layer."""

from ..report.plot_file import save_plot
from ..report.plots import COLOURS


def plot_costs(costs, path):
    """Operations, cache and, where measured, time over the number of images, a line per compression."""
    quantities = {
        "operations of the prompt (MFLOPs)": lambda cost: cost.total_flops / 1e6,
        "of which scores of attention (MFLOPs)": lambda cost: cost.flops["scores"] / 1e6,
        "cache (KiB)": lambda cost: cost.cache_bytes / 1024,
    }
    if all(cost.seconds is not None for cost in costs):
        quantities["time of the prompt (ms, measured)"] = lambda cost: 1000 * cost.seconds
    ways = list(dict.fromkeys(cost.compression for cost in costs))

    def draw(axes):
        for axis, (title, value) in zip(axes, quantities.items(), strict=True):
            for colour, way in enumerate(ways):
                own = [cost for cost in costs if cost.compression == way]
                label = f"{way} ({own[0].tokens_per_image} tokens each)"
                # ways that cost the same lie on each other: later ones are drawn thinner
                style = {"color": COLOURS[colour], "markersize": 9 - 1.7 * colour, "linewidth": 4 - 0.8 * colour}
                axis.plot([cost.images for cost in own], [value(cost) for cost in own], "o-", label=label, **style)
            axis.set(title=title, xlabel="images")
            axis.set_ylim(bottom=0)
        axes[0].legend(frameon=False)

    return save_plot(draw, path, width=4.4 * len(quantities), height=3.8, columns=len(quantities))


def plot_readings(readings, path):
    """Entropy against its bound, and share on images against an even look, by layer; also of cross-attention to images."""
    panels = [
        ("entropy of attention (nats)", {"measured": "entropy", "bound log(N + j)": "bound"}),
        ("share of attention on images", {"measured": "image_share", "an even look": "even_share"}),
        ("entropy of cross-attention to images (nats)", {"measured": "cross_entropy", "bound log(states)": "cross_bound"}),
    ]
    if all(reading.cross_entropy is None for reading in readings):
        panels.pop()

    def draw(axes):
        for axis, (title, fields) in zip(axes, panels, strict=True):
            top = 0.0
            for colour, (label, name) in enumerate(fields.items()):
                found = {reading.layer: getattr(reading, name) for reading in readings if getattr(reading, name) is not None}
                style = "o-" if colour == 0 else "s:"
                axis.plot(list(found), list(found.values()), style, color=COLOURS[colour], label=label)
                top = max(top, *found.values())
            axis.set(title=title, xlabel="layer", xticks=[reading.layer for reading in readings])
            # room for the markers of the bound
            axis.set_ylim(0, 1.08 * top or 1)
            axis.legend(frameon=False)

    return save_plot(draw, path, width=4.8 * len(panels), height=3.8, columns=len(panels))
