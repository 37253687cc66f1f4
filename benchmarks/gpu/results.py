"""What comes of a run: one JSON file, a Markdown table beside it, and a figure where matplotlib is at hand.

Notable here: a speed stands beside the proof that the sides compute the same. Where they do not, the row says WRONG and shows
no speed; where they could not be compared, it says so.
"""

import importlib.util
import json

from benchmarks.files import write_atomically
from benchmarks.gpu.sides import NATIVE

HEADINGS = ("section", "side", "per second", "speed", "peak GiB", "MFU", "of memory", "fp32 differs", "differs (native's own)")
VERDICTS = {True: "", False: " WRONG", None: " not compared"}


def write_results(results, target):
    """The numbers as JSON at `target`, and as a table beside it."""
    write_atomically(json.dumps(results, indent=2), target)
    write_atomically(markdown(results), target.with_suffix(".md"))


def worst(far):
    return "" if not far else f"{max(far.values()):.1e}"


def row_of(section, side, numbers):
    """The cells of one side, as text."""
    check = numbers.get("check", {})
    verdict = VERDICTS[check.get("agrees")] if side != NATIVE else ""
    shown = side == NATIVE or check.get("agrees") is not False

    def cell(name, form):
        return form.format(numbers[name]) if name in numbers else ""

    measured = worst(check.get("measured"))
    return (
        section,
        side,
        cell("per_second", "{:,.1f}"),
        (cell("speed", "{:.2f} x") if shown else "") + verdict,
        cell("peak_gib", "{:.2f}"),
        cell("mfu", "{:.0%}"),
        cell("of_memory", "{:.0%}"),
        worst(check.get("fp32")),
        f"{measured} ({worst(check.get('native_measured'))})" if measured else "",
    )


def card_line(card):
    """The card, the versions, the day and the limits, in a line."""
    sheet = card.get("sheet_tflops")
    of = "the matrix product measured here" if sheet is None else f"the data sheet's {sheet:g} TFLOP/s"
    return (
        f"{card['name']}, torch {card['torch']}, CUDA {card['cuda']}, transformers {card['transformers']}, {card['date']}, "
        f"{card['dtype']}: matrix products {card['matrix_tflops']:.1f} TFLOP/s, memory "
        f"{card['memory_gb_per_second']:.0f} GB/s; MFU is of {of}."
    )


def markdown(results):
    """The table of all sections, and what failed."""
    rows, failed = [], []
    for name, section in results["sections"].items():
        rows += [row_of(name, side, numbers) for side, numbers in section.get("sides", {}).items()]
        failed += [f"- {name}, {what}: {why}" for what, why in section.get("failed", {}).items()]
    table = [" | ".join(HEADINGS), "|".join("---" for _ in HEADINGS), *(" | ".join(row) for row in rows)]
    lines = [card_line(results["card"]), "", *(f"|{line}|" if line.startswith("---") else f"| {line} |" for line in table)]
    if failed:
        lines += ["", "Not measured:", "", *(line.replace("\n", " ") for line in failed)]
    return "\n".join(lines) + "\n"


def draw(results, target):
    """Bars of the speed of our sides over native, as SVG; False where there is nothing to draw, or to draw with."""
    speeds = {}
    for name, section in results["sections"].items():
        for side, numbers in section.get("sides", {}).items():
            if "speed" in numbers and numbers.get("check", {}).get("agrees") is not False:
                speeds[name if side == "ours" else f"{name}, {side.removeprefix('ours ')}"] = numbers["speed"]
    if not speeds or importlib.util.find_spec("matplotlib") is None:
        return False
    from hf_variants.report.plots import bar_figure

    write_atomically(
        bar_figure(speeds, "Speed over native", "times native", card_line(results["card"])).image.decode(), target
    )
    return True
