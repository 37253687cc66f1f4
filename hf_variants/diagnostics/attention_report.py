"""Attention in numbers, per layer and head, on real text: self-attention, that of both stacks of an encoder-decoder and
between them, and that of text to images.

Notable here: an entropy is given beside its bound, log of the number of visible keys (a window's bound is lower), so that
heads of different layers can be compared; mass on a learned sink is counted apart from mass on the first tokens.
"""

from dataclasses import asdict, dataclass, field

import torch

from .attention_kinds import tally_attention


@dataclass
class AttentionReport:
    """Means over all queries that see more than one key.

    Attributes:
        tokens: queries that were counted: real tokens, and of rows with images those of the text.
        heads: list of dicts, one per layer and head: `layer`, `head`, `entropy` (nats), `bound` (mean log of visible keys),
            `entropy_share` (mean of entropy / bound of each query, 0 to 1), `sink_mass` (weight on the first `sink_tokens`),
            `learned_sink_mass`, `distance` (mean tokens back; not where keys are of another row), `max_logit`,
            `max_capped_logit` (behind the soft-cap) and `max_unnormed_logit` (of the same states without the query-key norm),
            `redundancy` (largest cosine of its map with another head's of the layer); with images in the
            row `image_mass` (weight on them, mean of the text behind an image) and `even_image_mass`, what an even look at the
            visible keys would put there.
        by_position: {layer: list of {"start", "end", "entropy", "bound"}}: mean of the layer's heads.
        kind: one of `attention_kinds.KINDS`.
        maps: fp32 [layers, heads, Q, K], mean over the rows without their pads; only where asked for.
    """

    tokens: int
    sink_tokens: int
    heads: list
    by_position: dict
    kind: str = "self"
    maps: torch.Tensor | None = field(default=None, repr=False)

    @property
    def layers(self):
        """Indices of the layers that have this attention."""
        return sorted({row["layer"] for row in self.heads})

    def as_dict(self):
        """Plain data, without the maps."""
        return {name: value for name, value in asdict(self).items() if name != "maps"}


def attention_report(model, input_ids, sink_tokens=1, buckets=8, keep_maps=False, attention_mask=None):
    """Measure the self-attention of a model of one stack of layers.

    Args:
        model: a model of the family; eval mode is set for the measurement.
        input_ids: int64 [B, T], T at least 2.
        sink_tokens: how many first tokens count as the place where attention is parked (Xiao et al. 2023, arXiv 2309.17453).
        buckets: ranges of positions for `by_position`.
        attention_mask: [B, T], 1 at real tokens; None where all are.

    Raises:
        ValueError: for a foreign model, an encoder-decoder, a single token, or no sink token.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(
            f"{type(model).__name__} is an encoder-decoder, which has three kinds of attention and reads two inputs; call "
            "attention_reports(model, {'input_ids': ..., 'labels': ...})"
        )
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    return attention_reports(model, inputs, sink_tokens, buckets, keep_maps)["self"]


def attention_reports(model, inputs, sink_tokens=1, buckets=8, keep_maps=False):
    """Measure every kind of attention that a model has: {kind: `AttentionReport`}, kinds as in `attention_kinds`.

    Args:
        inputs: dict of what the model reads, as in `attention_kinds.tally_attention`.
        model, sink_tokens, buckets, keep_maps: as in `attention_report`. Of cross-attention the sink is the first states.

    Raises:
        ValueError: for a foreign model, and for inputs that are missing, unknown or say nothing.
    """
    tallies = tally_attention(model, inputs, sink_tokens, keep_maps)
    return {
        kind: AttentionReport(
            tokens=layers[0].queries,
            sink_tokens=sink_tokens,
            heads=[row for tally in layers for row in tally.rows()],
            by_position={tally.layer: tally.by_position(buckets) for tally in layers},
            kind=kind,
            maps=torch.stack([tally.mean_maps() for tally in layers]) if keep_maps else None,
        )
        for kind, layers in tallies.items()
    }
