"""Memory plans of one config as stacked bars, with what a plan may take of a device as a line."""

from hf_variants.analysis.memory_plan import USABLE
from hf_variants.analysis.memory_table import PARTS, plan_name

from .plot_file import save_plot, short_name
from .plots import COLOURS


def plot_memory(plans, path, title=""):
    """One bar per plan of `analysis.plan_memory`, its peak by part; returns the path."""
    names = [plan_name(plan).replace(", ", "\n") for plan in plans]
    used = [part for part in PARTS if any(part in plan["peak"]["parts"] for plan in plans)]

    def draw(axes):
        base = [0.0] * len(plans)
        for index, part in enumerate(used):
            heights = [plan["peak"]["parts"].get(part, 0) / 1e9 for plan in plans]
            hatch = "//" if index >= len(COLOURS) else ""
            colour = COLOURS[index % len(COLOURS)]
            places = range(len(plans))
            axes.bar(
                places, heights, bottom=base, color=colour, hatch=hatch, edgecolor="white", linewidth=0, label=part, width=0.6
            )
            base = [below + height for below, height in zip(base, heights, strict=True)]
        for place, total in enumerate(base):
            backed = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            axes.text(place, total, f"{total:.3g}", ha="center", va="bottom", fontsize=9, bbox=backed)
        memory = plans[0]["settings"]["memory"]
        if memory is not None:
            label = f"{USABLE:.0%} of a device"
            axes.axhline(USABLE * memory / 1e9, color="#4D4D4D", linewidth=1, linestyle="--", label=label)
        axes.set_xticks(range(len(plans)), names, fontsize=8)
        settings = plans[0]["settings"]
        axes.set(ylabel="GB on each device")
        size = f"{settings['devices']:,} x {settings['rows']} x {settings['length']:,} tokens"
        read = "" if settings["encoder_length"] is None else f" behind {settings['encoder_length']:,}"
        if settings["images"] is not None:
            trained = "" if settings["trains"] is None else f", trains {', '.join(settings['trains'])}"
            read = f", {settings['images']} images{trained}"
        axes.set_title(f"{short_name(title)}: {size}{read}, {settings['dtype']}")
        axes.grid(axis="x", visible=False)
        axes.figure.legend(fontsize=8, frameon=False, loc="outside right upper")

    return save_plot(draw, path, width=max(6.4, 1.2 * len(plans) + 3))
