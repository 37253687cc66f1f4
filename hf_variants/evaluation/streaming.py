"""Perplexity of one text read without end, in a cache that keeps its first tokens and the latest ones, or the latest alone.

Notable here: every token is predicted once, from what the cache holds at its place; how many tokens go through a call changes
the time and not the numbers.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from ..modeling.start_window_cache import StartWindowCache


@dataclass
class StreamResult:
    """What was measured.

    Attributes:
        num_sink_tokens, window: of the cache.
        losses: float64 [tokens], nats; entry p is the prediction behind p + 1 tokens.
        cache_bytes: of keys and values at the end.
    """

    num_sink_tokens: int
    window: int
    losses: np.ndarray = field(repr=False)
    cache_bytes: int

    @property
    def name(self):
        latest = f"latest {self.window:,}"
        return f"first {self.num_sink_tokens} + {latest}" if self.num_sink_tokens else latest

    def by_position(self, edges):
        """List of {"start", "end", "loss", "perplexity"} of the predictions behind start + 1 to end tokens."""
        rows = []
        for start, end in zip(edges, edges[1:], strict=False):
            loss = float(self.losses[start:end].mean())
            rows.append({"start": start, "end": end, "loss": loss, "perplexity": math.exp(min(loss, 100.0))})
        return rows

    def to_dict(self, edges):
        """Plain JSON values."""
        total = self.by_position([0, len(self.losses)])[0]
        facts = {"num_sink_tokens": self.num_sink_tokens, "window": self.window, "cache_bytes": self.cache_bytes}
        return {**facts, "tokens": len(self.losses), **{name: total[name] for name in ("loss", "perplexity")},
                "by_position": self.by_position(edges)}  # fmt: skip


def stream_edges(tokens, capacity, parts=8):
    """Edges of ranges of positions: up to the capacity of the cache, from where on tokens go, and equal parts behind."""
    capacity = min(capacity, tokens)
    rest = tokens - capacity
    return sorted({0, capacity, *(capacity + round(rest * part / parts) for part in range(1, parts + 1))})


@torch.no_grad()
def stream_perplexity(model, ids, num_sink_tokens, window, tokens_per_call=256, progress=None):
    """Read ids [T + 1] once, and measure every prediction.

    Args:
        model: a causal model of the family, as `StartWindowCache` takes it; put in eval mode for the measurement.
        progress: called with (done, total) tokens after each call.

    Returns:
        `StreamResult` of T predictions.

    Raises:
        ValueError: for fewer than 2 ids, tokens_per_call below 1, or as `StartWindowCache`.
    """
    if ids.dim() != 1 or len(ids) < 2:
        raise ValueError(f"ids of shape {tuple(ids.shape)} must be [tokens + 1], at least 2")
    if tokens_per_call < 1:
        raise ValueError(f"tokens_per_call={tokens_per_call} must be at least 1")
    cache, losses = StartWindowCache(model.config, num_sink_tokens, window), []
    was_training = model.training
    model.eval()
    try:
        for start in range(0, len(ids) - 1, tokens_per_call):
            part = ids[start : start + tokens_per_call + 1].to(model.device)
            logits = model(part[None, :-1], past_key_values=cache).logits[0]
            losses.append(cross_entropy(logits.float(), part[1:], reduction="none").double().cpu())
            if progress:
                progress(start + len(part) - 1, len(ids) - 1)
    finally:
        model.train(was_training)
    held = sum(part.numel() * part.element_size() for layer in cache.layers for part in (layer.keys, layer.values))
    return StreamResult(num_sink_tokens, window, torch.cat(losses).numpy(), held)
