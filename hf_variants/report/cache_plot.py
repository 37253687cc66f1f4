"""Caches of several configs as bars, and their decoding speed where it was measured."""

import re
from textwrap import fill

from .plot_file import save_plot, short_name
from .plots import COLOURS


def plot_caches(profiles, path):
    """Bars of bytes by layer kind, stacked, and of tokens per second where they were timed; `profiles` are `CacheProfile`s."""
    names = [fill(re.sub(r",\s*", ", ", short_name(profile.name)), 22) for profile in profiles]
    timed = [(name, profile) for name, profile in zip(names, profiles, strict=True) if profile.tokens_per_second is not None]
    kinds = list(dict.fromkeys(row["kind"] for profile in profiles for row in profile.kinds))

    def draw(axes):
        left, right = axes if timed else (axes, None)
        base = [0.0] * len(names)
        for index, kind in enumerate(kinds):
            heights = [sum(row["bytes"] for row in profile.kinds if row["kind"] == kind) / 2**20 for profile in profiles]
            left.bar(names, heights, bottom=base, color=COLOURS[index % len(COLOURS)], label=kind, width=0.6)
            base = [below + height for below, height in zip(base, heights, strict=True)]
        left.set(ylabel="MiB", title=f"cache of {profiles[0].batch_size} x {profiles[0].length:,} tokens")
        left.legend(fontsize=9, frameon=False)
        if right is not None:
            speeds = {
                "by the clock": [profile.tokens_per_second for _, profile in timed],
                "by processor time": [1000 / profile.processor_ms_per_token for _, profile in timed],
            }
            for index, (label, values) in enumerate(speeds.items()):
                places = [place + 0.32 * (index - 0.5) for place in range(len(timed))]
                bars = right.bar(places, values, color=COLOURS[index + 2], width=0.3, label=label)
                right.bar_label(bars, fmt="{:.3g}", fontsize=9, padding=1)
            right.set_xticks(range(len(timed)), [name for name, _ in timed])
            right.set(ylabel="tokens per second", title="decoding, one row")
            right.legend(fontsize=9, frameon=False, loc="upper left", ncols=2)
            right.set_ylim(top=1.15 * max(max(values) for values in speeds.values()))
        for part in (left, right) if right is not None else (left,):
            part.tick_params(axis="x", labelsize=8)
            part.grid(axis="x", visible=False)

    return save_plot(draw, path, width=11 if timed else 8.4, columns=2 if timed else 1)
