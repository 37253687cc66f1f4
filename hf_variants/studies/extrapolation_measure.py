"""Perplexity of one model beyond the length it was trained on: in total at each length, and by position at the longest.

    held-out row    t0 t1 t2 ... t12          M = 12 = the least common multiple of the lengths, and one more
    length 4        [t0..t3] [t4..t7] [t8..t11]     each window reads its tokens and predicts the next of each
    length 6        [t0..t5] [t6..t11]              so that every length predicts t1 ... t12, the very same tokens

Notable here: what a model refuses (a learned table ends) is part of the result, with the reason, and never a number.
"""

import math

import torch
from torch.nn.functional import cross_entropy

from ..context.rope_swap import scaled_model

_TOKENS_PER_FORWARD = 4096


def readings_of(model, methods, factor):
    """{name of the reading: model}: the model as trained, and under `methods` of rescaling where it has RoPE.

    Args:
        factor: how many times longer its context becomes under a method.
    """
    found = {"as trained": model}
    if getattr(model.config, "position_embedding_type", None) == "rope":
        found.update({method: scaled_model(model, method, factor) for method in methods})
    return found


def measure_lengths(model, ids, lengths, bucket):
    """Perplexity of a model at every length.

    Args:
        model: a causal model.
        ids: held-out rows [rows, M + 1], M a multiple of every length.
        lengths: ascending. bucket: tokens per range of positions.

    Returns:
        {"by_length": [{"length", "tokens", "loss", "refused"}], "by_position": [{"start", "end", "loss"}]}; loss is in
        nats per token, or None with the model's reason in `refused`. Positions are those of the longest length that the
        model takes; a range holds the predictions after start + 1 to end tokens.
    """
    by_length, longest = [], None
    for length in lengths:
        try:
            losses = losses_by_position(model, ids, length)
        except ValueError as refusal:
            by_length.append({"length": length, "tokens": 0, "loss": None, "refused": str(refusal)})
            continue
        by_length.append({"length": length, "tokens": losses.numel(), "loss": losses.mean().item(), "refused": None})
        longest = losses
    ranges = [] if longest is None else [(start, start + bucket) for start in range(0, longest.shape[1], bucket)]
    by_position = [
        {"start": start, "end": min(end, longest.shape[1]), "loss": longest[:, start:end].mean().item()}
        for start, end in ranges
    ]
    return {"by_length": by_length, "by_position": by_position}


@torch.no_grad()
def losses_by_position(model, ids, length):
    """Cross-entropy (fp64 [windows, length]) of the token behind each of the windows that cut rows [rows, M + 1] up."""
    windows = ids.unfold(1, length + 1, length).flatten(0, 1)
    was_training = model.training
    model.eval()
    try:
        parts = []
        for batch in windows.split(max(1, _TOKENS_PER_FORWARD // length)):
            batch = batch.to(model.device)
            logits = model(input_ids=batch[:, :-1], use_cache=False).logits.flatten(0, 1)
            losses = cross_entropy(logits.float(), batch[:, 1:].flatten(), reduction="none")
            parts.append(losses.view(len(batch), length).double().cpu())
    finally:
        model.train(was_training)
    return torch.cat(parts)


def row_length(lengths):
    """Tokens of a held-out row that every length divides."""
    return math.lcm(*lengths)
