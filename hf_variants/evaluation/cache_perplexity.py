"""Perplexity of a text whose keys and values are read from a cache of some kind, beside that of a plain cache.

Notable here: the text goes through the model in short calls, so that all but the newest tokens are seen as the cache gives
them back; one call for everything would never read from it.
"""

import math

import torch
from torch.nn.functional import cross_entropy


@torch.no_grad()
def cache_perplexity(model, ids, cache, tokens_per_call=32):
    """Perplexity (float) of ids [T + 1], each predicted once behind those before it.

    Args:
        model: a causal model in eval mode.
        cache: an empty cache, or None for the model's own.
        tokens_per_call: of which a call holds at most as many; tokens of one call see each other as they are.

    Raises:
        ValueError: for fewer than 2 ids or a call of less than one token.
    """
    if ids.dim() != 1 or len(ids) < 2:
        raise ValueError(f"ids of shape {tuple(ids.shape)} must be [tokens + 1], at least 2")
    if tokens_per_call < 1:
        raise ValueError(f"tokens_per_call={tokens_per_call} must be at least 1")
    total, inputs, targets = 0.0, ids[:-1], ids[1:]
    for start in range(0, len(inputs), tokens_per_call):
        piece = slice(start, start + tokens_per_call)
        outputs = model(input_ids=inputs[None, piece], past_key_values=cache, use_cache=True)
        cache = outputs.past_key_values
        total += cross_entropy(outputs.logits[0].float(), targets[piece], reduction="sum").item()
    return math.exp(min(total / len(inputs), 100.0))
