"""Attention in numbers, per layer and head, on real text.

Notable here: an entropy is given beside its bound, log of the number of visible keys (a window's bound is lower), so that
heads of different layers can be compared; mass on a learned sink is counted apart from mass on the first tokens.
"""

from dataclasses import asdict, dataclass, field

import torch

from ..analysis.joined import refuse_several_stacks
from .observed import observe_attention


@dataclass
class AttentionReport:
    """Means over all queries that see more than one key.

    Attributes:
        tokens: queries that were counted.
        heads: list of dicts, one per layer and head: `layer`, `head`, `entropy` (nats), `bound` (mean log of visible keys),
            `entropy_share` (mean of entropy / bound of each query, 0 to 1), `sink_mass` (weight on the first `sink_tokens`),
            `learned_sink_mass`, `distance` (mean tokens back), `max_logit` and `max_capped_logit`, `redundancy` (largest
            cosine of its map with another head's of the layer).
        by_position: {layer: list of {"start", "end", "entropy", "bound"}}: mean of the layer's heads.
        maps: fp32 [layers, heads, T, T], mean over the rows; only where asked for.
    """

    tokens: int
    sink_tokens: int
    heads: list
    by_position: dict
    maps: torch.Tensor | None = field(default=None, repr=False)

    def as_dict(self):
        """Plain data, without the maps."""
        return {name: value for name, value in asdict(self).items() if name != "maps"}


@torch.no_grad()
def attention_report(model, input_ids, sink_tokens=1, buckets=8, keep_maps=False):
    """Measure the attention of a model on rows without padding.

    Args:
        model: a model of the family; eval mode is set for the measurement.
        input_ids: int64 [B, T], T at least 2.
        sink_tokens: how many first tokens count as the place where attention is parked (Xiao et al. 2023, arXiv 2309.17453).
        buckets: ranges of positions for `by_position`.

    Raises:
        ValueError: for a foreign model, one of several stacks, a single token, or no sink token.
    """
    refuse_several_stacks(model.config, type(model).__name__)
    if input_ids.ndim != 2 or input_ids.shape[1] < 2:
        raise ValueError(f"input_ids of shape {tuple(input_ids.shape)}: give rows of at least 2 tokens, [B, T]")
    if not 1 <= sink_tokens < input_ids.shape[1]:
        raise ValueError(f"sink_tokens={sink_tokens} must lie in [1, {input_ids.shape[1] - 1}], fewer than the row has tokens")
    rows, positions, maps = {}, {}, {}

    def see(seen):
        rows[seen.layer] = _heads(seen, sink_tokens)
        positions[seen.layer] = _by_position(seen, buckets)
        if keep_maps:
            maps[seen.layer] = seen.weights.mean(0).cpu()

    was_training = model.training
    model.eval()
    try:
        with observe_attention(model, see):
            model(input_ids=input_ids.to(model.device), **({"use_cache": False} if model.config.is_causal else {}))
    finally:
        model.train(was_training)
    return AttentionReport(
        tokens=input_ids.numel(),
        sink_tokens=sink_tokens,
        heads=[row for layer in sorted(rows) for row in rows[layer]],
        by_position={layer: positions[layer] for layer in sorted(positions)},
        maps=torch.stack([maps[layer] for layer in sorted(maps)]) if keep_maps else None,
    )


def entropy(weights):
    """Entropy in nats over the last axis, of the share that goes to keys (a learned sink may hold the rest)."""
    total = weights.sum(-1, keepdim=True).clamp_min(1e-30)
    share = weights / total
    return -(share * share.clamp_min(1e-30).log()).sum(-1)


def _heads(seen, sink_tokens):
    weights, visible = seen.weights, seen.visible.expand(len(seen.weights), 1, *seen.weights.shape[2:])
    several = visible.sum(-1) > 1  # [B, 1, Q]
    bounds = visible.sum(-1).clamp_min(1).double().log()
    entropies = entropy(weights.double())

    def mean(values):
        """[B, heads, Q] -> [heads]: over the queries that have a choice."""
        return (values * several).sum((0, 2)) / several.sum().clamp_min(1)

    places = torch.arange(weights.shape[-1], device=weights.device, dtype=torch.float64)
    back = weights.shape[-1] - weights.shape[-2] + torch.arange(weights.shape[-2], device=weights.device, dtype=torch.float64)
    distance = (weights.double() * (back[:, None] - places).abs()).sum(-1)
    hidden = ~visible
    raw = seen.scores.masked_fill(hidden, -torch.inf).amax((0, 2, 3))
    capped = raw if seen.softcap is None else seen.softcap * torch.tanh(raw / seen.softcap)
    columns = {
        "entropy": mean(entropies),
        "bound": mean(bounds.expand_as(entropies)),
        "entropy_share": mean(entropies / bounds.clamp_min(1e-9)),
        "sink_mass": mean(weights[..., :sink_tokens].double().sum(-1)),
        "learned_sink_mass": mean((1 - weights.double().sum(-1)).clamp_min(0)),
        "distance": mean(distance),
        "max_logit": raw,
        "max_capped_logit": capped,
        "redundancy": _redundancy(weights),
    }
    numbers = {name: values.tolist() for name, values in columns.items()}
    return [
        {"layer": seen.layer, "head": head, **{name: values[head] for name, values in numbers.items()}}
        for head in range(weights.shape[1])
    ]


def _redundancy(weights):
    """Largest cosine of each head's maps with those of another head: [heads]; zero for a single one."""
    flat = torch.nn.functional.normalize(weights.transpose(0, 1).flatten(1).double(), dim=1)
    likeness = flat @ flat.T
    likeness.fill_diagonal_(0.0)
    return likeness.amax(1)


def _by_position(seen, buckets):
    entropies = entropy(seen.weights.double()).mean((0, 1))
    bounds = seen.visible.sum(-1).clamp_min(1).double().log().mean((0, 1))
    edges = sorted({round(len(entropies) * i / buckets) for i in range(buckets + 1)})
    return [
        {"start": start, "end": end, "entropy": float(entropies[start:end].mean()), "bound": float(bounds[start:end].mean())}
        for start, end in zip(edges, edges[1:], strict=False)
    ]
