"""One self-contained HTML file that shows what a run did, with plots, tables and samples."""

from .blocks import Cards, Code, Figure, Paragraph, Samples, Section, Table
from .page import render_report, write_report
from .plots import bar_figure, line_figure, loss_figure, position_figure
from .tables import extension_table, facts_table, quantization_table

__all__ = [
    "Cards",
    "Code",
    "Figure",
    "Paragraph",
    "Samples",
    "Section",
    "Table",
    "bar_figure",
    "extension_table",
    "facts_table",
    "line_figure",
    "loss_figure",
    "position_figure",
    "quantization_table",
    "render_report",
    "write_report",
]
