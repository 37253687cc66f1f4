"""Figure of a text read without end: loss along the text, a line per cache."""

import numpy as np

from .plot_file import save_plot
from .plots import COLOURS


def plot_streams(results, path, smooth=500):
    """Write the figure; returns its path.

    Args:
        results: `StreamResult`s. smooth: tokens that are averaged for a point.
    """

    def draw(axes):
        for index, result in enumerate(results):
            size = max(1, min(smooth, len(result.losses) // 4))
            whole = len(result.losses) // size * size
            means = result.losses[:whole].reshape(-1, size).mean(axis=1)
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(size * (np.arange(len(means)) + 0.5), means, color=colour, linewidth=1.6, label=result.name)
        capacity = results[0].num_sink_tokens + results[0].window
        axes.axvline(capacity, color="#7b8794", linewidth=1, linestyle=":")
        axes.annotate(
            " tokens are dropped from here on", (capacity, 0.98), xycoords=("data", "axes fraction"), va="top", fontsize=8
        )
        axes.set(xlabel="position in the text (tokens)", ylabel="loss (nats per token)")
        axes.legend(fontsize=9, frameon=False)

    return save_plot(draw, path)
