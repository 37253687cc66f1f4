"""Shared by the tests of the modeling room: cached models, packed rows and padded rows."""

from functools import lru_cache

import torch

from tests.variants import ATTENTION, ENCODERS, POSITIONS, TOGGLES, build, draw_ids, tiny

TOLERANCE = 1e-5
# what masks, caches and both directions can tell apart: topologies, norms and feed-forwards act on each token alone
MIXERS = [*ATTENTION, *POSITIONS, "moe_groups"]
# (name, is_causal): every toggle as a decoder, every mixer as an encoder too
BOTH_WAYS = [(name, True) for name in TOGGLES] + [(name, False) for name in [*MIXERS, *ENCODERS]]


@lru_cache(maxsize=256)
def model_of(name, backend="sdpa", is_causal=True):
    """A randomised model of one toggle; shared between tests, so never change it."""
    config = tiny(name, is_causal=is_causal)
    config._attn_implementation = backend
    return build(config)


def logits_of(model, ids, **inputs):
    with torch.no_grad():
        return model(ids, **inputs).logits


def scaled_far(a, b):
    """Largest difference relative to the size of the numbers (1 at least); infinite for NaN."""
    difference = ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()
    return float("inf") if difference != difference else difference


def pack(lengths, pads=0, seed=1):
    """One packed row: ids [1, sum + pads], position_ids that start again per document, mask of ones and tail pads."""
    ids = draw_ids(1, sum(lengths), seed=seed)
    positions = torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0)
    mask = torch.ones_like(ids)
    if pads:
        ids, positions, mask = (torch.nn.functional.pad(part, (0, pads)) for part in (ids, positions, mask))
    return ids, positions, mask


def documents_alone(model, ids, lengths):
    """Logits of each document run by itself, joined again: [1, sum(lengths), vocab]."""
    return torch.cat([logits_of(model, part) for part in ids[:, : sum(lengths)].split(lengths, dim=1)], dim=1)


def padded(ids, columns, width):
    """One row `ids` [1, T] put at `columns` (a list of T indices) of a row of `width`: ids and mask."""
    row, mask = torch.zeros(1, width, dtype=torch.long), torch.zeros(1, width, dtype=torch.long)
    row[:, columns], mask[:, columns] = ids, 1
    return row, mask
