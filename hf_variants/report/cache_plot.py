"""Caches of several configs as bars, and their decoding speed where it was measured."""

from textwrap import fill

from .plot_file import save_plot
from .plots import COLOURS


def plot_caches(profiles, path):
    """Bars of bytes by layer kind, stacked, and of tokens per second; `profiles` are `CacheProfile`s."""
    names = [fill(profile.name.replace(",", ", "), 22) for profile in profiles]
    speeds = [profile.tokens_per_second for profile in profiles]
    measured = all(speed is not None for speed in speeds)
    kinds = list(dict.fromkeys(row["kind"] for profile in profiles for row in profile.kinds))

    def draw(axes):
        left, right = axes if measured else (axes, None)
        base = [0.0] * len(names)
        for index, kind in enumerate(kinds):
            heights = [sum(row["bytes"] for row in profile.kinds if row["kind"] == kind) / 2**20 for profile in profiles]
            left.bar(names, heights, bottom=base, color=COLOURS[index % len(COLOURS)], label=kind, width=0.6)
            base = [below + height for below, height in zip(base, heights, strict=True)]
        left.set(ylabel="MiB", title=f"cache of {profiles[0].batch_size} x {profiles[0].length:,} tokens")
        left.legend(fontsize=9, frameon=False)
        if right is not None:
            right.bar_label(right.bar(names, speeds, color=COLOURS[1], width=0.6), fmt="{:.1f}", fontsize=9)
            right.set(ylabel="tokens per second", title="decoding, one row")
        for part in (left, right) if right is not None else (left,):
            part.tick_params(axis="x", labelsize=8)
            part.grid(axis="x", visible=False)

    return save_plot(draw, path, width=11 if measured else 8.4, columns=2 if measured else 1)
