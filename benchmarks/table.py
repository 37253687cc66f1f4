"""The table of results, on a terminal and as Markdown."""

import json

from rich.table import Table

from benchmarks.case import OURS
from benchmarks.run_case import write_atomically

HEADINGS = ("case", "reference /s", "ours /s", "speed", "cpu", "peak", "of limit", "target")


def met(result):
    """{target: whether it was reached}: speeds and shares are at least, peaks and times at most."""
    at_most = ("peak", "load", "import_ms")
    return {
        name: result[name] <= bound if name in at_most else result[name] >= bound
        for name, bound in result["targets"].items()
        if name in result
    }


def row_of(result):
    """The cells of one result, as text."""
    sides = result["sides"]
    reference = next(iter(sides))
    share = f"{result['share']:.0%} {result['share_of']}" if "share" in result else ""
    peak = f"{result['peak']:.2f} x" if "peak" in result else ""
    signs = {name: "reached" if reached else "MISSED" for name, reached in met(result).items()}
    targets = ", ".join(f"{name} {result['targets'][name]:g} {signs.get(name, '')}" for name in result["targets"])
    return (
        result["case"],
        f"{sides[reference]['per_second']:.1f} ({reference})",
        f"{sides[OURS]['per_second']:.1f}",
        f"{result['speed']:.2f} x",
        f"{result['cpu']:.2f} x",
        peak,
        share,
        targets,
    )


def print_table(results, console):
    """Print every result, and the limits and machine they were measured on."""
    table = Table(*HEADINGS)
    for result in results.values():
        table.add_row(*row_of(result))
    console.print(table)
    for line in sorted({result["machine"] for result in results.values()}):
        console.print(line)
    limits = [result["limits"] for result in results.values()]
    for name in limits[0] if limits else ():
        values = [found[name] for found in limits if name in found]
        console.print(f"{name}: {min(values):.1f} to {max(values):.1f} over the cases")


def markdown(results):
    """The table as Markdown."""
    lines = [" | ".join(HEADINGS), "|".join("---" for _ in HEADINGS)]
    lines += [" | ".join(row_of(result)) for result in results.values()]
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines) + "\n"


def write_json(results, target):
    """All results in one file, and the Markdown table beside it."""
    write_atomically(json.dumps(results, indent=2), target)
    write_atomically(markdown(results), target.with_suffix(".md"))
