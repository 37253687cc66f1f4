"""What a config costs, and two of them side by side: parameters by part, FLOPs per token and cache bytes by length.

Notable here: models that cache nothing, as encoders, have no panels of decoding; the bars of two configs share their scales.
"""

from textwrap import fill

from .count_plot import parameter_unit, part_colours, stack_bars
from .plot_file import save_plot, short_name
from .plots import COLOURS


def plot_description(facts, path, title=""):
    """Panels from the facts of `analysis.describe`; returns the path."""
    parameters, rows = facts["parameters"], facts["by_length"]
    bars = {"total": parameters["parts"], "active per token": parameters["active_parts"]}
    flops = {"mean of a row": [row["flops_per_token"] for row in rows]}
    cache = {short_name(title): [row["kv_bytes"] for row in rows]}
    if any(cache[short_name(title)]):
        flops["of the last, from the cache"] = [row["flops_of_last_token"] for row in rows]
    lengths = [row["length"] for row in rows]
    return _draw(path, bars, lengths, flops, cache, facts["kv_cache"]["dtype"], short_name(title))


def plot_diff(facts, path, names=("A", "B")):
    """Panels from the facts of `analysis.diff_configs`, the two configs beside each other; returns the path."""
    rows = facts["by_length"]
    names = [short_name(name) for name in names]
    if names[0] == names[1]:
        names[1] += " (B)"
    costs = {name: pair for name, pair in facts["costs"].items() if name.startswith("parameters.")}
    bars = {
        name: {part.removeprefix("parameters."): pair[side] for part, pair in costs.items()} for side, name in enumerate(names)
    }
    flops, cache = (
        {name: [row[cost][side] for row in rows] for side, name in enumerate(names)}
        for cost in ("flops_per_token", "kv_bytes")
    )
    return _draw(path, bars, [row["length"] for row in rows], flops, cache, facts["dtype"], "")


def _draw(path, bars, lengths, flops, cache, dtype, title):
    caches = any(any(values) for values in cache.values())
    colours = part_colours(dict.fromkeys(part for parts in bars.values() for part in parts))

    def draw(axes):
        divisor, unit = parameter_unit(max(sum(parts.values()) for parts in bars.values()))
        heights = [{part: count / divisor for part, count in parts.items()} for parts in bars.values()]
        stack_bars(axes[0], [fill(name, 22) for name in bars], heights, colours)
        axes[0].set(ylabel=f"{unit} parameters", title=f"parameters, {title}" if title else "parameters")
        axes[0].grid(axis="x", visible=False)
        axes[0].set_ylim(top=1.45 * max(sum(parts.values()) for parts in heights))
        axes[0].legend(fontsize=8, frameon=False, loc="upper center", ncols=2)
        _beside(axes[1], lengths, flops, 1e9)
        axes[1].set(xlabel="tokens of a row", ylabel="GFLOPs per token", title="forward FLOPs per token")
        if caches:
            divisor, unit = (2**30, "GiB") if max(map(max, cache.values())) >= 2**33 else (2**20, "MiB")
            _beside(axes[2], lengths, cache, divisor)
            axes[2].set(xlabel="tokens of a row", ylabel=unit, title=f"key-value cache, {dtype}")

    return save_plot(draw, path, width=15 if caches else 10, columns=3 if caches else 2)


def _beside(axis, lengths, series, divisor):
    """Bars of each length beside each other, one per name."""
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        places = [place + width * (index - (len(series) - 1) / 2) for place in range(len(lengths))]
        bars = axis.bar(places, [value / divisor for value in values], width=0.92 * width, color=COLOURS[index], label=name)
        axis.bar_label(bars, fmt=_short, fontsize=8 if len(lengths) * len(series) <= 6 else 7, padding=1)
    axis.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axis.set_ylim(top=1.2 * max(max(values) for values in series.values()) / divisor)
    axis.grid(axis="x", visible=False)
    if len(series) > 1:
        axis.legend(fontsize=8, frameon=False, loc="upper left")


def _short(number):
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
