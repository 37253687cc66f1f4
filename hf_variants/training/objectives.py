"""What a model is trained to predict, and the rows that teach it.

    clm               every next token                        a causal decoder
    mlm               15% of the tokens, hidden in the row    a bidirectional encoder (is_causal=False)
    span_corruption   the hidden spans, after one another     an encoder-decoder

Notable here: which tokens are hidden follows from the row, the epoch and the seed alone, so it does not change with the batch,
the number of processes or an interruption, and evaluation always hides the same.
"""

import zlib
from dataclasses import dataclass

import numpy as np
import torch

from .arguments import NO_LABELS_LEFT, refuse_smoothing
from .idle_keys import refuse_idle_keys
from .span_corruption import CorruptedRows, corruption_for, sentinel_ids, sentinel_names
from .trainer import collate_rows

IGNORED = -100


@dataclass
class MaskedRows:
    """Collator of masked language modelling (Devlin et al. 2019, arXiv:1810.04805 §3.1).

    Of the tokens chosen, 80% are replaced by the mask token, 10% by a random one, 10% stay. Special tokens and padding are
    never chosen.

    Attributes:
        share: of the tokens to hide. seed: decides which. epoch: set anew by training at every epoch.
        special_ids: never hidden. vocab_size: random tokens are drawn below it.
    """

    mask_id: int
    special_ids: tuple
    vocab_size: int
    share: float = 0.15
    seed: int = 0
    epoch: int = 0

    def __call__(self, rows):
        batch = collate_rows(rows)
        ids = batch["input_ids"].numpy()
        inputs, labels = zip(*(self.hide(row) for row in ids), strict=True)
        return {**batch, "input_ids": torch.from_numpy(np.stack(inputs)), "labels": torch.from_numpy(np.stack(labels))}

    def hide(self, ids):
        """(input ids, labels) of one row of ids (int64 [T])."""
        draw = np.random.default_rng((self.seed, self.epoch, zlib.crc32(ids.tobytes())))
        chosen = (draw.random(len(ids)) < self.share) & ~np.isin(ids, self.special_ids)
        how = draw.random(len(ids))
        others = draw.integers(0, self.vocab_size, len(ids))
        inputs = np.where(chosen & (how < 0.8), self.mask_id, ids)
        inputs = np.where(chosen & (how >= 0.8) & (how < 0.9), others, inputs)
        return inputs, np.where(chosen, ids, IGNORED)


def collator_of(spec, tokenizer):
    """The collator of the objective of a `TrainingSpec`.

    Raises:
        ValueError: where the tokenizer has no mask token for `mlm`, or too few sentinels for `span_corruption`.
    """
    return _COLLATORS[spec.objective](spec, tokenizer)


def _next_token(spec, tokenizer):
    return collate_rows


def _masked(spec, tokenizer):
    if tokenizer.mask_token_id is None:
        raise ValueError(
            "objective='mlm' needs a mask token and the tokenizer of tokenizer.path has none; leave tokenizer.path out to "
            "train one, or add tokenizer.mask_token to it"
        )
    special = tuple(tokenizer.all_special_ids)
    return MaskedRows(tokenizer.mask_token_id, special, len(tokenizer), spec.mask_share, spec.seed)


def _corrupted(spec, tokenizer):
    keys, corruption = spec.span_corruption, corruption_of_spec(spec)
    sentinels = sentinel_ids(tokenizer, keys.sentinel, corruption.spans)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    numbers = (keys.noise_density, keys.mean_span_length)
    return CorruptedRows(sentinels, tokenizer.eos_token_id, pad, corruption, *numbers, seed=spec.seed)


_COLLATORS = {"clm": _next_token, "mlm": _masked, "span_corruption": _corrupted}
_NEEDS = {
    "clm": "needs a causal model",
    "mlm": "needs a model that sees both sides: set model.is_causal=false",
    "span_corruption": "needs an encoder-decoder: give model.encoder and model.decoder",
}
_FITTING = {"decoder": "clm", "encoder": "mlm", "encoder-decoder": "span_corruption"}
_OBJECTIVES_OF = {"mask_share": ("mlm",), "tokenizer.mask_token": ("mlm",), "span_corruption": ("span_corruption",)}
_METRICS = {"mlm": {"expert_balance"}, "span_corruption": set()}


def corruption_of_spec(spec):
    """The `Corruption` of the rows of a `TrainingSpec` with objective="span_corruption"."""
    keys = spec.span_corruption
    return corruption_for(spec.data.sequence_length, keys.noise_density, keys.mean_span_length)


def sentinels_of_spec(spec):
    """The sentinels (list of str) that the tokenizer of a new model has; none with other objectives. Raises ValueError."""
    keys = spec.span_corruption
    return sentinel_names(keys.sentinel, keys.sentinels) if spec.objective == "span_corruption" else []


def row_length(spec):
    """Tokens of a packed row of a `TrainingSpec`: more than an encoder reads where spans of it become single sentinels."""
    return corruption_of_spec(spec).row if spec.objective == "span_corruption" else spec.data.sequence_length


def kind_of(config):
    """ "decoder", "encoder" or "encoder-decoder", or None where a native config does not say."""
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder"
    return {True: "decoder", False: "encoder", None: None}[getattr(config, "is_causal", None)]


def check_objective(spec, kind):
    """Raise a ValueError where the objective of a `TrainingSpec` does not suit its model, or a key does nothing with it.

    Args:
        kind: of the model, as `kind_of` has it.
    """
    if kind is not None and _FITTING[kind] != spec.objective:
        raise ValueError(
            f"objective={spec.objective!r} {_NEEDS[spec.objective]}; this model is of the kind {kind!r}, which "
            f"objective={_FITTING[kind]!r} trains"
        )
    _check_keys(spec)
    if left := set(spec.metrics) - _METRICS.get(spec.objective, set(spec.metrics)):
        raise ValueError(f"metrics={sorted(left)} measure causal models and do not go with objective={spec.objective!r}")
    if spec.objective != "clm" and spec.samples.prompts:
        raise ValueError(
            f"samples.prompts are continued by causal models only; leave them out with objective={spec.objective!r}"
        )


def _check_keys(spec):
    refuse_idle_keys(spec, "objective", _OBJECTIVES_OF)
    if spec.objective != "span_corruption":
        return
    refuse_smoothing(spec.trainer, NO_LABELS_LEFT)
    needed = corruption_of_spec(spec).spans
    if needed > spec.span_corruption.sentinels and spec.model is not None:
        raise ValueError(
            f"span_corruption.sentinels={spec.span_corruption.sentinels} is less than the {needed} spans that are hidden of a "
            f"row with data.sequence_length={spec.data.sequence_length}; give at least {needed}, or lengthen mean_span_length"
        )
    if spec.data.packing not in ("within_documents", "per_document"):
        raise ValueError(
            f"data.packing={spec.data.packing!r} puts several documents into a row, and a decoder would write one while it "
            "reads the others; with objective='span_corruption' choose 'within_documents' (rows without padding, from "
            "documents at least that long) or 'per_document' (every document, padded)"
        )
