"""Tasks that read one text and write another: pairs, a trainer, generation with BLEU, chrF and exact match, a report.

Notable here: names are resolved on first use, so that reading a recipe does not import torch.
"""

from ..lazy_names import lazy_names

_WHERE = {
    "Seq2SeqSpec": "specs",
    "PairsSpec": "specs",
    "seq2seq": "run",
    "PairCollator": "pairs",
    "encode_pairs": "pairs",
    "write_texts": "writing",
    "PairsTrainer": "trainer",
}

__all__, __getattr__ = lazy_names(__name__, _WHERE)
