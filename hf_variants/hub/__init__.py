"""What a repo of the family holds beside weights and code: the model card."""

from .card import card_section, write_card
from .run_section import markdown_table, write_run_section

__all__ = ["card_section", "markdown_table", "write_card", "write_run_section"]
