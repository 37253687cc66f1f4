"""Perplexity by position under every way of stretching the context, with the same weights and no training.

    tokens     t1 t2 t3 ... t256 | t257 ... t512 | t513 ... t1024
    buckets    (0, 256]            (256, 512]      (512, 1024]        a token is counted where it stands in its row

Notable here: the rows are the same for every method, so the methods differ by their frequencies alone.
"""

import math

import torch
from torch.nn.functional import cross_entropy

from .rope_swap import scaled_model

DEFAULT_METHODS = ("none", "theta", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope")
_POSITIONS_PER_BLOCK = 1024


def compare_scalings(
    model, ids, methods=DEFAULT_METHODS, factor=4.0, lengths=None, options=None, layers=None, force=False, batch_size=1
):
    """Perplexity by position for each method, without training.

    Args:
        model: a causal model with RoPE.
        ids: token ids [rows, T] of continuous text, T up to `factor` times the context of the model.
        methods: names from `METHODS`.
        factor: how many times longer the context becomes.
        lengths: upper ends of the buckets, ascending, the last at most T; None gives `bucket_ends`.
        options: {method: {option: value}} for rules that take options.
        layers, force: as in `scale_rope`.
        batch_size: rows per forward.

    Returns:
        {method: [{"start", "end", "tokens", "loss", "perplexity"}, ...]}; a bucket holds the tokens that stand after
        position `start` up to `end`, counted from 1. The loss is in nats per token.

    Raises:
        ValueError: for buckets that are not ascending or reach beyond the rows, or rows longer than the new context.
    """
    results = {}
    for method in methods:
        scaled = scaled_model(model, method, factor, layers=layers, force=force, **(options or {}).get(method, {}))
        results[method] = perplexity_by_position(scaled, ids, lengths, batch_size)
    return results


def perplexity_by_position(model, ids, lengths=None, batch_size=1):
    """Buckets of one model on rows of ids [rows, T]; see `compare_scalings`.

    Raises:
        ValueError: for ids that are no rows of at least 2 tokens, or longer than a learned table of positions.
    """
    limit = model.config.max_position_embeddings
    if ids.ndim != 2 or ids.shape[1] < 2:
        raise ValueError(f"ids of shape {tuple(ids.shape)} must be [rows, T] with T of at least 2 tokens")
    if ids.shape[1] > limit:
        raise ValueError(f"ids has rows of {ids.shape[1]} tokens, beyond max_position_embeddings={limit}")
    lengths = bucket_ends(ids.shape[1]) if lengths is None else check_lengths(lengths, ids.shape[1])
    losses = token_losses(model, ids, batch_size)
    buckets = []
    for start, end in zip([0, *lengths], lengths, strict=False):
        # Column p of the losses belongs to the token at position p + 2: the first token is read, not predicted.
        part = losses[:, max(start - 1, 0) : end - 1]
        loss = part.mean().item() if part.numel() else None
        perplexity = None if loss is None else math.exp(min(loss, 100.0))
        buckets.append({"start": start, "end": end, "tokens": part.numel(), "loss": loss, "perplexity": perplexity})
    return buckets


@torch.no_grad()
def token_losses(model, ids, batch_size=1):
    """Cross-entropy (fp64 [rows, T - 1]) of every token after the first, with the model in eval mode."""
    was_training = model.training
    model.eval()
    try:
        parts = []
        for batch in ids.split(batch_size):
            batch = batch.to(model.device)
            logits = model(input_ids=batch, use_cache=False).logits[:, :-1]
            flat, targets = logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1)
            # In blocks: the softmax of a whole long row may be larger than the model.
            blocks = zip(flat.split(_POSITIONS_PER_BLOCK), targets.split(_POSITIONS_PER_BLOCK), strict=True)
            losses = [cross_entropy(part.float(), target, reduction="none") for part, target in blocks]
            parts.append(torch.cat(losses).view(len(batch), -1).double().cpu())
    finally:
        model.train(was_training)
    return torch.cat(parts)


def bucket_ends(length, smallest=64):
    """Powers of two from `smallest` up, ending with `length` itself."""
    ends, end = [], smallest
    while end < length:
        ends.append(end)
        end *= 2
    return [*ends, length]


def check_lengths(lengths, longest):
    """`lengths` as a list of ascending bucket ends within rows of `longest` tokens. Raises ValueError."""
    lengths = [int(length) for length in lengths]
    ascending = all(later > earlier for earlier, later in zip(lengths, lengths[1:], strict=False))
    if not lengths or not ascending or lengths[0] < 2 or lengths[-1] > longest:
        raise ValueError(f"lengths={lengths} must ascend from at least 2 to at most {longest}, the tokens of a row")
    return lengths
