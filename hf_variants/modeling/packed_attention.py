"""Attention of rows that hold several documents, one document at a time.

Notable here: a mask of a packed row has Q x K entries, most of them hidden, and the kernel computes every one of them; cut
into its documents, a row costs the sum of their squares. The cut is one `split`, so its gradient is one concatenation.
"""

from typing import NamedTuple

import torch


class PackedRows(NamedTuple):
    """Stands for the mask of whole causal rows without pads: which tokens belong together.

    documents: [B, T], the document number of each token. lengths: tokens of each document, row after row.
    """

    documents: torch.Tensor
    lengths: list

    def same_document(self):
        """Boolean [B, 1, T, T], true within a document."""
        return (self.documents.unsqueeze(2) == self.documents.unsqueeze(1)).unsqueeze(1)


def packed_rows(documents):
    """The `PackedRows` of document numbers [B, T] that start at 0 in each row and never fall."""
    return PackedRows(documents, [n for row in documents for n in row.bincount().tolist() if n])


def by_document(attend, query, key, value, rows, alibi=None):
    """Output [B, T, heads, Dv] of `attend(query, key, value, alibi)` on each document, [1, heads, n, D] -> [1, n, heads, Dv].

    alibi: an `AlibiBias` of all tokens, or None.
    """
    batch, _, length, _ = query.shape
    parts = [_documents(states, rows.lengths) for states in (query, key, value)]
    biases = [None] * len(rows.lengths) if alibi is None else _biases(alibi, rows.lengths, batch)
    out = [attend(*each) for each in zip(*parts, biases, strict=True)]
    return torch.cat(out, dim=1).view(batch, length, *out[0].shape[2:])


def _documents(states, lengths):
    """[B, heads, T, D] -> [1, heads, n, D] of each document."""
    rows = states.transpose(0, 1).flatten(1, 2)
    return [part.unsqueeze(0) for part in rows.split(lengths, dim=1)]


def _biases(alibi, lengths, batch):
    places = (part.expand(batch, -1).reshape(1, -1).split(lengths, dim=1) for part in (alibi.queries, alibi.keys))
    return [alibi._replace(queries=queries, keys=keys) for queries, keys in zip(*places, strict=True)]
