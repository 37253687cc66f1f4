"""What a repo of the family holds beside weights and code: the model card."""

from .card import card_section, write_card

__all__ = ["card_section", "write_card"]
