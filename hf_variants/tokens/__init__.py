"""What a tokenizer costs: tokens per character and byte by language, and the vocabulary that is worth its table."""

from .inflation import sample_texts, tokenizer_report
from .vocabulary_sweep import sweep_vocabulary

__all__ = ["sample_texts", "sweep_vocabulary", "tokenizer_report"]
