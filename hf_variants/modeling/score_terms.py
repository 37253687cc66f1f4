"""What a layer adds to plain scaled scores: a soft-cap, a bias of places, sinks, a scale of each key."""

from typing import NamedTuple

import torch

from .relative_bias import RelativeBias


class AlibiBias(NamedTuple):
    """Slopes [heads] and the places of queries [B or 1, Q] and keys [B or 1, K]; the bias is slope * -|query - key|.

    With a `factor` the places are first turned into heights, which are rounded to bfloat16, and the bias is
    -|height of query - height of key| times that factor, the scale of the scores (Falcon-RW).
    """

    slopes: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    factor: float | None = None

    def block(self, rows):
        """Bias [B or 1, heads, len(rows), K] of the queries `rows` (a slice)."""
        if self.factor is None:
            distance = (self.queries[:, rows].unsqueeze(2) - self.keys.unsqueeze(1)).abs()
            return self.slopes.view(-1, 1, 1) * -distance.unsqueeze(1).to(self.slopes.dtype)
        slopes = self.slopes.view(-1, 1)
        queries, keys = (rounded_heights(slopes, part.unsqueeze(1)) for part in (self.queries[:, rows], self.keys))
        return -(queries.unsqueeze(3) - keys.unsqueeze(2)).abs() * self.factor

    def add_to(self, scores, rows):
        """Scores [B, heads, len(rows), K] plus the bias of the queries `rows`; they may be written over."""
        bias = self.block(rows)
        in_place = scores.dtype == bias.dtype and not torch.is_grad_enabled()
        return scores.add_(bias) if in_place else scores + bias

    def scaled(self, scaling):
        """The bias for scores of the scale `scaling`, which the plain form does not look at."""
        return self if self.factor is None else self._replace(factor=scaling)


def rounded_heights(slopes, places):
    """slope * place with both, and their product, rounded to bfloat16; in fp32."""
    return (slopes.to(torch.bfloat16) * places.to(torch.bfloat16)).to(torch.float32)


class ScoreTerms(NamedTuple):
    """What acts on the scores beside scale and mask: soft-cap, bias, sink logits [heads], a factor per key [B, heads, K].

    The bias `alibi` is an `AlibiBias` or a `RelativeBias`: a tensor, the places of queries and keys, and plain numbers.
    """

    softcap: float | None = None
    alibi: AlibiBias | RelativeBias | None = None
    sinks: torch.Tensor | None = None
    key_scale: torch.Tensor | None = None

    @property
    def plain(self):
        return all(term is None for term in self)


NO_TERMS = ScoreTerms()
