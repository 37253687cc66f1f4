"""Errors of quantized layers: one line per kind of Linear over the depth of the model."""

from .plot_file import save_plot
from .plots import COLOURS


def plot_quality(facts, path):
    """Signal-to-noise of weights and, where inputs were taken, of outputs, by layer; returns the path."""
    weighted = any(entry["weighted_snr_db"] is not None for entry in facts["linears"])
    panels = [("snr_db", "weights"), *([("weighted_snr_db", "outputs on text")] if weighted else [])]

    def draw(axes):
        for axis, (key, title) in zip(axes if weighted else [axes], panels, strict=True):
            for index, kind in enumerate(dict.fromkeys(entry["kind"] for entry in facts["linears"])):
                points = _by_layer([entry for entry in facts["linears"] if entry["kind"] == kind], key)
                style = "-" if index < len(COLOURS) else "--"
                axis.plot(*points, style, color=COLOURS[index % len(COLOURS)], marker="o", markersize=3.5, label=kind)
            axis.set(xlabel="layer", ylabel="signal to noise, dB", title=title)
            axis.xaxis.get_major_locator().set_params(integer=True)
        axis.figure.legend(*axis.get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside right upper")

    return save_plot(draw, path, width=12 if weighted else 8.4, columns=2 if weighted else 1)


def _by_layer(entries, key):
    """(layers, mean of `key` over the Linears of each), of those that have one."""
    layers = sorted({entry["layer"] for entry in entries if entry[key] is not None})
    values = [[entry[key] for entry in entries if entry["layer"] == layer and entry[key] is not None] for layer in layers]
    return layers, [sum(found) / len(found) for found in values]
