"""Figures of a report, drawn with matplotlib as SVG.

Notable here: lines are named where they end, so nobody has to match a legend; the colours serve colour-blind readers;
one style for all figures, set locally so that the user's matplotlib is left alone.
"""

from io import BytesIO

from .blocks import Figure

# Okabe & Ito 2008, without the yellow that is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#4D4D4D")

STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa5b1",
    "axes.labelcolor": "#3e4c59",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e7eb",
    "xtick.color": "#3e4c59",
    "ytick.color": "#3e4c59",
    "svg.hashsalt": "hf_variants",
    "figure.constrained_layout.use": True,
}


def line_figure(series, title, x_label, y_label, how="", log_y=False, levels=None, marks=None, styles=None, x_log2=False):
    """Lines over a common axis.

    Args:
        series: {name: [(x, y), ...]}; points whose y is None are left out.
        levels: {name: y}, drawn as dotted horizontal lines (a baseline).
        marks: {name: x}, drawn as vertical lines (the original context length).
        styles: {name: (colour index, line style)}; None gives each line its own colour.
        log_y, x_log2: logarithmic axes, the second with powers of two as ticks.

    Raises:
        ValueError: where no series holds a point.
    """
    series = {name: [(x, y) for x, y in points if y is not None] for name, points in series.items()}
    series = {name: points for name, points in series.items() if points}
    if not series:
        raise ValueError(f"figure {title!r} has no points to draw")

    def draw(axes):
        ends = []
        for index, (name, points) in enumerate(series.items()):
            colour, style = (styles or {}).get(name, (index, _style(index)))
            colour = COLOURS[colour % len(COLOURS)]
            marker = "o" if len(points) < 25 else None
            axes.plot(*zip(*points, strict=True), style, color=colour, linewidth=1.8, marker=marker, markersize=3.5)
            ends.append((points[-1][1], name, colour))
        if log_y:
            axes.set_yscale("log")
        if x_log2:
            axes.set_xscale("log", base=2)
            _plain_ticks(axes.xaxis, sorted({x for points in series.values() for x, _ in points}))
        _draw_levels_and_marks(axes, levels or {}, marks or {})
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if log_y:
            _plain_log_ticks(axes)
        _name_ends(axes, ends)

    return Figure(_svg(draw), title, how, f"Lines of {y_label} over {x_label}: {', '.join(series)}")


def bar_figure(values, title, y_label, how=""):
    """Bars with their numbers: values is {name: number}.

    Raises:
        ValueError: without values.
    """
    if not values:
        raise ValueError(f"figure {title!r} has no bars to draw")

    def draw(axes):
        bars = axes.bar(list(values), list(values.values()), color=COLOURS[0], width=0.6)
        axes.bar_label(bars, fmt="{:.4g}", padding=2, fontsize=9)
        axes.set_ylabel(y_label)
        axes.grid(axis="x", visible=False)

    return Figure(_svg(draw), title, how, f"Bars of {y_label}: {', '.join(values)}")


def loss_figure(train, evaluation=None, baseline=None, title="Loss during training", how=""):
    """Training and held-out loss over optimizer steps.

    Args:
        train, evaluation: [(step, loss), ...] in nats per token.
        baseline: {name: loss}, for example that of a unigram model.
    """
    series = {"training": train}
    if evaluation:
        series["held-out"] = evaluation
    return line_figure(series, title, "optimizer step", "cross-entropy (nats per token)", how, levels=baseline)


def position_figure(before, after=None, original_length=None, title="Perplexity by position", how=""):
    """Perplexity over the position of the predicted token, a line per method.

    Args:
        before: {method: [{"end": last position of the bucket, "perplexity": number}, ...]} without any training.
        after: the same after fine-tuning; drawn dashed, in the colour of the same method.
        original_length: context length of the first training, drawn as a vertical line.
    """
    series, styles = {}, {}
    for index, (method, buckets) in enumerate(before.items()):
        series[method] = _bucket_points(buckets)
        styles[method] = (index, _style(index))
    order = list(before)
    for method, buckets in (after or {}).items():
        name = f"{method}, fine-tuned"
        series[name] = _bucket_points(buckets)
        styles[name] = (order.index(method) if method in order else len(order), "--")
    marks = {"original length": original_length} if original_length else None
    ends = sorted({bucket["end"] for buckets in before.values() for bucket in buckets})
    doubling = all(later >= 1.5 * end for end, later in zip(ends, ends[1:], strict=False))
    axis = "position of the predicted token (upper end of the bucket, tokens)"
    values = [y for points in series.values() for _, y in points if y is not None]
    wide = bool(values) and max(values) > 4 * min(values)
    return line_figure(series, title, axis, "perplexity", how, log_y=wide, marks=marks, styles=styles, x_log2=doubling)


def _style(index):
    """Solid, until the colours begin again."""
    return "-" if index < len(COLOURS) else "-."


def _bucket_points(buckets):
    return [(bucket["end"], bucket["perplexity"]) for bucket in buckets]


def _svg(draw):
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(8.4, 3.9))
        FigureCanvasSVG(canvas)
        draw(canvas.subplots())
        stream = BytesIO()
        canvas.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def _draw_levels_and_marks(axes, levels, marks):
    for name, y in levels.items():
        axes.axhline(y, color="#7b8794", linestyle=":", linewidth=1.4)
        axes.annotate(f"{name} ({y:.3g})", (0.99, y), xycoords=("axes fraction", "data"), xytext=(0, 3),
                      textcoords="offset points", ha="right", fontsize=9, color="#52606d")  # fmt: skip
    for name, x in marks.items():
        axes.axvline(x, color="#7b8794", linestyle=":", linewidth=1.4)
        axes.annotate(f"{name} ({x:,})", (x, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -2),
                      textcoords="offset points", va="top", fontsize=9, color="#52606d")  # fmt: skip


def _plain_ticks(axis, values):
    axis.set_ticks(values, labels=[f"{value:,}" for value in values])
    axis.set_ticks([], minor=True)


def _plain_log_ticks(axes):
    """1, 2, 5 in every decade, written as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if high / low < 1000 else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _name_ends(axes, ends):
    """Write each line's name at its right end, moved apart where they would overlap."""
    to_fraction, left = axes.transData - axes.transAxes, axes.get_xlim()[0]
    ends = sorted(ends)
    heights = spread([float(to_fraction.transform((left, y))[1]) for y, _, _ in ends], 0.062)
    for (_, name, colour), height in zip(ends, heights, strict=True):
        axes.annotate(
            name,
            (1.0, height),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
            annotation_clip=False,
        )


def spread(heights, gap):
    """Ascending heights moved at least `gap` apart, within [0, 1] where there is room."""
    moved = list(heights)
    for index in range(1, len(moved)):
        moved[index] = max(moved[index], moved[index - 1] + gap)
    if moved and moved[-1] > 1:
        moved[-1] = max(1.0, gap * (len(moved) - 1))
        for index in range(len(moved) - 2, -1, -1):
            moved[index] = min(moved[index], moved[index + 1] - gap)
    return moved
