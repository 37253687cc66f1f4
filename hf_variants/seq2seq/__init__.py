"""Tasks that read one text and write another: pairs, a trainer, generation with BLEU, chrF and exact match, a report.

Notable here: names are resolved on first use, so that reading a recipe does not import torch.
"""

_WHERE = {
    "Seq2SeqSpec": "specs",
    "PairsSpec": "specs",
    "seq2seq": "run",
    "PairCollator": "pairs",
    "encode_pairs": "pairs",
    "write_texts": "writing",
    "PairsTrainer": "trainer",
}

__all__ = list(_WHERE)


def __getattr__(name):
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
