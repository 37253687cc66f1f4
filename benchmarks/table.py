"""The table of results, on a terminal and as Markdown."""

import json

from rich.table import Table

from benchmarks.case import OURS
from benchmarks.files import write_atomically

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

# numbers with a column of their own; others are written behind their target
SHOWN = ("speed", "cpu", "peak", "share")
HEADINGS = ("case", "reference /s", "ours /s", "speed", "cpu", "peak", "of limit", "target")


def met(result):
    """{target: whether it was reached}: speeds and shares are at least, peaks and times at most."""
    at_most = ("peak", "import_ms", "graphs")
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
    targets = ", ".join(f"{name} {result['targets'][name]:g} {signs.get(name, 'not measured')}" for name in result["targets"])
    targets += "".join(f" ({name} {result[name]:.3g})" for name in result["targets"] if name in result and name not in SHOWN)
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


def page_part(results):
    """The results as part of a page: when and on what they were measured, how many targets were reached, the table."""
    verdicts = [reached for result in results.values() for reached in met(result).values()]
    lines = [f"{sum(verdicts)} of {len(verdicts)} targets reached. Measured on:", ""]
    lines += [f"- {line}" for line in sorted({result["machine"] for result in results.values()})]
    limits = [result["limits"] for result in results.values()]
    for name in sorted({name for found in limits for name in found}):
        values = [found[name] for found in limits if name in found]
        lines.append(f"- {name}: {min(values):.1f} to {max(values):.1f} over the rows")
    return "\n".join(lines) + "\n\n" + markdown(results)


def update_page(results, page):
    """Put the results between the two marks of `page`, in place of those that stand there.

    Raises:
        ValueError: where the page lacks the marks.
    """
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{page} needs the lines {BEGIN} and {END}, once each, around the table of results")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    write_atomically(f"{head}{BEGIN}\n{page_part(results)}{END}{tail}", page)


def write_json(results, target):
    """All results in one file, and the Markdown table beside it."""
    write_atomically(json.dumps(results, indent=2), target)
    write_atomically(markdown(results), target.with_suffix(".md"))
