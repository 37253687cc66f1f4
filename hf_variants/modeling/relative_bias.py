"""T5's relative bias: a learned number per head and bucket of distances, added to the scores of self-attention.

Raffel et al. 2020, arXiv:1910.10683 §2.1. A distance up to a quarter (causal: half) of the buckets has one of its own; farther
ones share buckets whose width grows with the logarithm, the last one from `max_distance` on. Both directions have half of the
buckets; where the stack is causal, what lies behind has them all.

Notable here: like ALiBi's, the bias is made block by block from the places of queries and keys; its gradient is a sum over the
pairs of each bucket.
"""

import math
from typing import NamedTuple

import torch


def bucket_of(distance, num_buckets, max_distance, bidirectional):
    """Bucket of each distance, place of the key minus place of the query; int64 of the same shape."""
    if bidirectional:
        num_buckets //= 2
        first, far = (distance > 0).long() * num_buckets, distance.abs()
    else:
        first, far = 0, (-distance).clamp(min=0)
    exact = num_buckets // 2
    grown = torch.log(far.float().clamp(min=1) / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    shared = (exact + grown.long()).clamp(max=num_buckets - 1)
    return first + torch.where(far < exact, far, shared)


class RelativeBias(NamedTuple):
    """The table [buckets, heads] and the places of queries [B or 1, Q] and keys [B or 1, K]."""

    table: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    max_distance: int
    bidirectional: bool

    def buckets(self, rows):
        """[B or 1, len(rows), K] of the queries `rows` (a slice)."""
        distance = self.keys.unsqueeze(1) - self.queries[:, rows].unsqueeze(2)
        return bucket_of(distance, self.table.shape[0], self.max_distance, self.bidirectional)

    def block(self, rows):
        """Bias [B or 1, heads, len(rows), K] of the queries `rows` (a slice)."""
        return self.table[self.buckets(rows)].permute(0, 3, 1, 2)

    def add_to(self, scores, rows):
        """Scores [B, heads, len(rows), K] plus the bias of the queries `rows`."""
        return scores + self.block(rows)

    def scaled(self, scaling):
        """The bias for scores of the scale `scaling`, at which it does not look."""
        return self

    def table_gradient(self, rows, grad_scores):
        """Gradient of the table from that of the scores of a block [B, heads, len(rows), K]."""
        buckets = self.buckets(rows)
        if buckets.shape[0] == 1:
            grad_scores = grad_scores.sum(0, keepdim=True)
        grad = torch.zeros(self.table.shape, dtype=torch.float32, device=self.table.device)
        return grad.index_add_(0, buckets.flatten(), grad_scores.permute(0, 2, 3, 1).reshape(-1, self.table.shape[1]))
