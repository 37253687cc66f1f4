"""Plots of an ablation: differences with their intervals, and held-out loss over the tokens.

Notable here: the same drawing makes the PNG file and the picture of the report.
"""

from ..report.plot_file import save_plot
from ..report.plots import COLOURS

_VERDICT_COLOURS = {"better": COLOURS[2], "worse": COLOURS[1]}


def plot_differences(rows, path, confidence):
    """A point and interval per variant, relative to what it is compared with; coloured where it is no noise."""
    shown = [row for row in rows if row["difference"] is not None]

    def draw(axes):
        axes.axvline(0, color="#7b8794", linewidth=1)
        for place, row in enumerate(reversed(shown)):
            colour = _VERDICT_COLOURS.get(row["verdict"], "#7b8794")
            axes.errorbar(
                row["difference"], place, xerr=row["difference_half_width"], fmt="o", color=colour, capsize=4, markersize=6
            )
            axes.annotate(
                _judged(row), (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=9, color=colour
            )
        names = [f"{row['variant']}\n(against {row['against']})" for row in reversed(shown)]
        axes.set_yticks(range(len(shown)), names, fontsize=9)
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(
            f"difference of the held-out loss (nats per token), with {confidence:.0%} interval; left is better.\n"
            "p is corrected for the number of comparisons"
        )

    return save_plot(draw, path, height=1.4 + 0.55 * len(shown)) if shown else None


def _judged(row):
    p = row["corrected_p_value"]
    return row["verdict"] if p is None else f"{row['verdict']}\n(p = {p:.2g})"


def plot_curves(curves, path):
    """Mean held-out loss over the steps, a line per variant, the range of the seeds as a band."""
    shown = {name: points for name, points in curves.items() if points}

    def draw(axes):
        for index, (name, points) in enumerate(shown.items()):
            colour, style = COLOURS[index % len(COLOURS)], ("-", "--", ":")[index // len(COLOURS) % 3]
            steps, means, lows, highs = zip(*points, strict=True)
            axes.plot(steps, means, style, color=colour, linewidth=1.8, marker="o", markersize=3, label=name)
            axes.fill_between(steps, lows, highs, color=colour, alpha=0.15, linewidth=0)
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("held-out loss (nats per token)")
        axes.legend(fontsize=9, frameon=False)

    return save_plot(draw, path) if shown else None
