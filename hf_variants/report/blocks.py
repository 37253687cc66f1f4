"""What a report is made of: sections of paragraphs, code, cards, tables, figures and samples.

Notable here: blocks are plain data, so they can be made anywhere and tested without HTML; those with numbers carry
`how`, a sentence on how the numbers were obtained; every text is escaped when the page is written.
"""

from dataclasses import dataclass, field


@dataclass
class Paragraph:
    """One paragraph of plain text."""

    text: str
    kind: str = field(default="paragraph", init=False)


@dataclass
class Code:
    """Lines to copy."""

    text: str
    kind: str = field(default="code", init=False)


@dataclass
class Cards:
    """A row of headline numbers: `items` holds (label, value, note) triples."""

    items: list
    how: str = ""
    kind: str = field(default="cards", init=False)

    def __post_init__(self):
        for item in self.items:
            if len(item) != 3:
                raise ValueError(f"Cards: item {item!r} must be a triple (label, value, note)")


@dataclass
class Table:
    """A table of text and numbers; cells that are numbers are aligned right.

    Args:
        columns: headings, with their units.
        rows: sequences of as many cells.
        title, how: a heading, and how the numbers were obtained.
        best: index of the row to mark, or None.
    """

    columns: list
    rows: list
    title: str = ""
    how: str = ""
    best: int | None = None
    kind: str = field(default="table", init=False)

    def __post_init__(self):
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"Table {self.title!r}: row {row!r} has {len(row)} cells for {len(self.columns)} columns")

    @property
    def numeric(self):
        """For every column, whether it holds numbers (or dashes) only."""
        return [all(_looks_numeric(row[index]) for row in self.rows) for index in range(len(self.columns))]


@dataclass
class Figure:
    """A picture as SVG or PNG bytes, with a title, how it was obtained, and a text for those who cannot see it."""

    image: bytes
    title: str
    how: str = ""
    alt: str = ""
    kind: str = field(default="figure", init=False)

    @property
    def mime(self):
        return "image/png" if self.image.startswith(b"\x89PNG") else "image/svg+xml"


@dataclass
class Samples:
    """Generated texts: `items` holds dicts with `source`, `prompt` and `text` (the continuation)."""

    items: list
    how: str = ""
    kind: str = field(default="samples", init=False)

    def __post_init__(self):
        for item in self.items:
            missing = {"source", "prompt", "text"} - set(item)
            if missing:
                raise ValueError(f"Samples: item {item!r} lacks {sorted(missing)}")


@dataclass
class Section:
    """A titled part of the page; `lead` says in a sentence or two what it shows."""

    title: str
    blocks: list
    lead: str = ""


def format_cell(value):
    """A cell as text: numbers with separators and three or four leading digits, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if value != value:
        return "not a number"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 1 or size == 0 else f"{value:.3g}"


def _looks_numeric(value):
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
