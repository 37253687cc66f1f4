"""Parameters by part, total and active, and training FLOPs per token by part and length, as bars."""

from .plot_file import save_plot, short_name
from .plots import COLOURS


def plot_count(facts, path, title=""):
    """Two panels from the facts of `analysis.count`; returns the path."""
    parameters, flops = facts["parameters"], facts["flops"]
    parts = list(dict.fromkeys([*parameters["parts"], *(part for row in flops for part in row["parts"])]))
    colours = part_colours(parts)

    def draw(axes):
        left, right = axes
        sizes = {"total": parameters["parts"], "active per token": parameters["active_parts"]}
        divisor, unit = parameter_unit(parameters["total"])
        stack_bars(
            left, list(sizes), [{part: n / divisor for part, n in counts.items()} for counts in sizes.values()], colours
        )
        left.set(ylabel=f"{unit} parameters", title=f"parameters, {short_name(title)}" if title else "parameters")
        lengths = [f"{row['length']:,}" for row in flops]
        training = [{part: sum(kinds.values()) / 1e9 for part, kinds in row["parts"].items()} for row in flops]
        stack_bars(right, lengths, training, colours)
        again = ", checkpointing" if facts["checkpointing"] else ""
        right.set(xlabel="tokens of a row", ylabel="GFLOPs per token", title=f"training FLOPs per token{again}")
        for part in (left, right):
            part.grid(axis="x", visible=False)
        handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        right.figure.legend(handles.values(), handles, fontsize=8, frameon=False, loc="outside right upper")

    return save_plot(draw, path, width=12, columns=2)


def part_colours(parts):
    """{part: (colour, hatch)}, no two alike."""
    return {part: (COLOURS[index % len(COLOURS)], "" if index < len(COLOURS) else "//") for index, part in enumerate(parts)}


def parameter_unit(total):
    """(divisor, name) of the unit in which `total` parameters are drawn."""
    return (1e9, "billion") if total >= 1e9 else (1e6, "million")


def stack_bars(axis, names, columns, colours):
    """Bars `names`, each of {part: height} on top of another; colours: {part: (colour, hatch)}, of all parts in order."""
    base = [0.0] * len(names)
    for part, (colour, hatch) in colours.items():
        heights = [column.get(part, 0.0) for column in columns]
        if any(heights):
            options = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
            axis.bar(names, heights, bottom=base, label=part.replace("_", " "), width=0.6, **options)
            base = [below + height for below, height in zip(base, heights, strict=True)]
