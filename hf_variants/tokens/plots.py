"""Figures of a tokenizer report and of a vocabulary sweep, written to a file."""

from ..report.plot_file import save_plot, short_name
from ..report.plots import COLOURS


def plot_report(rows, path):
    """Bars of tokens per character, grouped by language, a colour per tokenizer."""
    names = list(dict.fromkeys(row["tokenizer"] for row in rows))
    languages = list(dict.fromkeys(row["language"] for row in rows))
    width = 0.8 / len(names)

    def draw(axes):
        for index, name in enumerate(names):
            values = [next(r for r in rows if (r["tokenizer"], r["language"]) == (name, language)) for language in languages]
            places = [place + (index - (len(names) - 1) / 2) * width for place in range(len(languages))]
            heights = [row["tokens_per_character"] for row in values]
            bars = axes.bar(places, heights, width, color=COLOURS[index % len(COLOURS)], label=short_name(name))
            axes.bar_label(bars, fmt="{:.2f}", fontsize=8, padding=1)
        axes.set_xticks(range(len(languages)), languages)
        axes.set(ylabel="tokens per character", title="tokens per character by language")
        axes.grid(axis="x", visible=False)
        axes.legend(fontsize=9, frameon=False)

    return save_plot(draw, path)


def plot_sweep(costs, best, path):
    """Operations per byte by part, and tokens per byte, over the vocabulary size."""
    sizes = [cost.vocabulary for cost in costs]

    def draw(axes):
        left, right = axes
        for name, values in (
            ("all", [cost.forward_flops_per_byte for cost in costs]),
            ("output projection", [cost.output_flops_per_byte for cost in costs]),
            ("attention scores", [cost.attention_flops_per_byte for cost in costs]),
        ):
            left.plot(sizes, values, "o-", markersize=4, label=name, color=COLOURS[len(left.lines)])
        if best is not None:
            left.axvline(sizes[best], color="#7b8794", linestyle=":")
        left.set(
            xscale="log", yscale="log", xlabel="vocabulary", ylabel="forward FLOPs per byte", title="cost of a byte of text"
        )
        left.legend(fontsize=9, frameon=False)
        right.plot(sizes, [cost.tokens_per_byte for cost in costs], "o-", markersize=4, color=COLOURS[0])
        right.set(xscale="log", xlabel="vocabulary", ylabel="tokens per byte (held out)", title="length of the sequence")
        for part in axes:
            part.set_xticks(sizes, [f"{size:,}" for size in sizes])
            part.set_xticks([], minor=True)

    return save_plot(draw, path, width=11, columns=2)
