"""What merging key-value heads cost each layer: errors of keys and values."""

from .plot_file import save_plot, short_name
from .plots import COLOURS


def plot_kv_heads(facts, path, title=""):
    """Bars of the two errors of each layer, from the report of `jobs.kv_heads`; returns the path."""
    layers = facts["layers"]

    def draw(axes):
        for index, (key, label) in enumerate((("key_error", "keys"), ("value_error", "values"))):
            places = [layer + 0.4 * (index - 0.5) for layer in range(len(layers))]
            axes.bar(places, [layer[key] for layer in layers], width=0.38, color=COLOURS[index], label=label)
        axes.set(xlabel="layer", ylabel="error, of the norm")
        weighed = "on text" if facts["weighed"] else "of weights"
        how = f"{facts['before']} to {facts['after']} key-value heads, {facts['method']}, {weighed}"
        axes.set_title(f"{short_name(title)}: {how}" if title else how)
        axes.grid(axis="x", visible=False)
        axes.margins(y=0.15)
        axes.legend(fontsize=9, frameon=False, loc="upper right", ncols=2)

    return save_plot(draw, path)
