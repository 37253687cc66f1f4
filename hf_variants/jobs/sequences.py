"""`hf-variants seq2seq`: see `seq2seq.run`, which does it all."""

from ..seq2seq.run import seq2seq

__all__ = ["seq2seq"]
