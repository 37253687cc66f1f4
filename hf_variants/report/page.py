"""Writes blocks as one HTML file that needs nothing beside it.

Notable here: the page is a single template with every text escaped; pictures are data URIs; the file appears whole or
not at all.
"""

import base64
import os
from pathlib import Path

from .blocks import Cards, Code, Figure, Paragraph, Samples, Section, Table, format_cell

_BLOCKS = (Cards, Code, Figure, Paragraph, Samples, Table)


def render_report(sections, title="Report", subtitle="", footer=""):
    """The page as text.

    Args:
        sections: list of `Section`.
        title, subtitle, footer: plain text.

    Raises:
        ValueError: where a section or block is of another kind.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    for section in sections:
        if not isinstance(section, Section):
            raise ValueError(f"sections holds a {type(section).__name__}; each must be a Section(title, blocks)")
        for block in section.blocks:
            if not isinstance(block, _BLOCKS):
                names = [kind.__name__ for kind in _BLOCKS]
                raise ValueError(f"section {section.title!r} holds a {type(block).__name__}; choose from {names}")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = format_cell
    environment.filters["base64"] = lambda image: base64.b64encode(image).decode("ascii")
    page = environment.get_template("template.html")
    return page.render(sections=sections, title=title, subtitle=subtitle, footer=footer)


def write_report(path, sections, title="Report", subtitle="", footer=""):
    """Write `render_report` of the same arguments to `path` and return the path."""
    path = Path(path)
    text = render_report(sections, title, subtitle, footer)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return path
