"""The part of a model card that tells of a run: data, settings, what was measured, and its curve.

Notable here: it stands between markers of its own, so that it is refreshed by the next run, kept by the next save, and never
touches what a user wrote.
"""

from pathlib import Path

from huggingface_hub import ModelCard

RUN_BEGIN = "<!-- hf_variants: run begin -->"


def write_run_section(directory, text, name="run"):
    """Write or refresh the section in `directory`/README.md, which is made where it is missing.

    Args:
        text: markdown, its first line a heading of the second level.
        name: tells apart the sections of several jobs that made one checkpoint, such as its training and what it was for.
    """
    begin, end = f"<!-- hf_variants: {name} begin -->", f"<!-- hf_variants: {name} end -->"
    path = Path(directory) / "README.md"
    old = path.read_text(encoding="utf-8") if path.is_file() else "---\n{}\n---\n"
    block = f"{begin}\n{text.strip()}\n{end}"
    if begin in old and end in old:
        new = old[: old.index(begin)] + block + old[old.index(end) + len(end) :]
    else:
        new = f"{old.rstrip()}\n\n{block}\n"
    ModelCard(new, ignore_metadata_errors=True).save(path)


def markdown_table(rows, head=("", "")):
    """A table of (name, value) pairs or longer rows; numbers are written with three or four leading digits."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "–" if value is None else str(value).replace("|", "\\|")
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
