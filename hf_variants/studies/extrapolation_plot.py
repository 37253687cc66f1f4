"""Figure of an extrapolation: perplexity by length, and loss by position at the longest one."""

from ..report.plot_file import save_plot
from ..report.plots import COLOURS

_STYLES = ("-", "--", ":", "-.")


def plot_extrapolation(results, path):
    """Write the figure; returns its path. Readings of one model share its colour; bands are intervals over seeds."""
    variants = list(dict.fromkeys(row["variant"] for row in results["rows"]))
    readings = list(dict.fromkeys(row["reading"] for row in results["rows"]))

    def draw(axes):
        from matplotlib.ticker import FuncFormatter, NullLocator

        left, right = axes
        for row in results["rows"]:
            colour = COLOURS[variants.index(row["variant"]) % len(COLOURS)]
            style = _STYLES[readings.index(row["reading"]) % len(_STYLES)]
            points = [entry for entry in row["by_length"] if entry["loss"] is not None]
            if points:
                lengths, values = zip(*((entry["length"], entry["perplexity"]) for entry in points), strict=True)
                left.plot(lengths, values, style, color=colour, marker="o", markersize=3.5, linewidth=1.6, label=row["name"])
                _refusal(left, row, points, colour)
            middles = [(entry["start"] + entry["end"]) / 2 for entry in row["by_position"]]
            losses = [entry["loss"] for entry in row["by_position"]]
            right.plot(middles, losses, style, color=colour, linewidth=1.4)
            widths = [entry["half_width"] for entry in row["by_position"]]
            if widths and widths[0] is not None:
                low, high = ([loss + sign * width for loss, width in zip(losses, widths, strict=True)] for sign in (-1, 1))
                right.fill_between(middles, low, high, color=colour, alpha=0.15, linewidth=0)
        for panel in axes:
            panel.axvline(results["trained_length"], color="#7b8794", linewidth=1, linestyle=":")
        left.set(
            xscale="log", yscale="log", xlabel="tokens per row", ylabel="perplexity", title="the same tokens, read in rows of"
        )
        left.set_xticks(results["lengths"], [f"{length:,}" for length in results["lengths"]])
        left.xaxis.set_minor_locator(NullLocator())
        for locate in (left.yaxis.set_major_formatter, left.yaxis.set_minor_formatter):
            locate(FuncFormatter(lambda value, _: f"{value:,.4g}"))
        left.legend(fontsize=8, frameon=False)
        right.set(
            xlabel="position in the row",
            ylabel="loss (nats per token)",
            title="by position, in the longest rows each one takes",
        )

    return save_plot(draw, path, width=11, columns=2)


def _refusal(axes, row, points, colour):
    if any(entry["refused"] for entry in row["by_length"]):
        last = points[-1]
        axes.annotate("ends here", (last["length"], last["perplexity"]), textcoords="offset points", xytext=(6, -4),
                      fontsize=8, color=colour)  # fmt: skip
