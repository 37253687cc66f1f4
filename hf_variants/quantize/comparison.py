"""What held-out tokens say of quantized weights: their perplexity, and how far predictions moved from full precision.

    perplexity    exp of the mean cross-entropy of what `targets_of` scores
    divergence    mean over the scored tokens of KL(full || quantized), in nats

Notable here: where quantization costs little, a difference of perplexities is mostly chance, since a moved prediction is
as often better as worse; the divergence counts every move, so it ranks methods on far fewer tokens.
"""

import math

import torch

from .batches import IGNORED, targets_of
from .layerwise import outputs_of

# Tokens whose predictions are in memory twice over.
_TOKENS = 128


def compare(shell, streams):
    """Perplexities and divergences of `Stream`s that have passed all layers; the first is that of full precision.

    Returns:
        ({name: perplexity}, {name: divergence}), the second without the first stream.
    """
    reference, *others = streams
    losses, moved, count = dict.fromkeys(streams, 0.0), dict.fromkeys(others, 0.0), 0
    for number, batch in enumerate(streams[reference].batches):
        targets = targets_of(shell.config, batch).flatten()
        scored = targets != IGNORED
        targets, count = targets[scored], count + int(scored.sum())
        full = outputs_of(shell, batch, streams[reference].hidden[number]).flatten(0, 1)[scored]
        losses[reference] += _loss(full, targets)
        for name in others:
            logits = outputs_of(shell, batch, streams[name].hidden[number]).flatten(0, 1)[scored]
            losses[name] += _loss(logits, targets)
            moved[name] += _divergence(full, logits)
    return {name: math.exp(loss / count) for name, loss in losses.items()}, {n: total / count for n, total in moved.items()}


def _loss(logits, targets):
    return float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))


def _divergence(full, logits):
    """Sum over rows of KL(full || logits)."""
    total = 0.0
    for before, after in zip(full.split(_TOKENS), logits.split(_TOKENS), strict=True):
        before, after = (torch.log_softmax(rows, dim=-1) for rows in (before, after))
        total += float(torch.nn.functional.kl_div(after, before, reduction="sum", log_target=True))
    return total
