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


def collator_of(objective, tokenizer, share, seed):
    """The collator of an objective. Raises ValueError where the tokenizer has no mask token for `mlm`."""
    if objective == "clm":
        return collate_rows
    if tokenizer.mask_token_id is None:
        raise ValueError(
            "objective='mlm' needs a mask token and the tokenizer of tokenizer.path has none; leave tokenizer.path out to "
            "train one, or add tokenizer.mask_token to it"
        )
    return MaskedRows(tokenizer.mask_token_id, tuple(tokenizer.all_special_ids), len(tokenizer), share, seed)


def check_objective(spec, is_causal):
    """Raise a ValueError where the objective of a `TrainingSpec` does not suit its model.

    Args:
        is_causal: of the model's config; None where it is not known.
    """
    if spec.objective == "span_corruption":
        raise ValueError(
            "objective='span_corruption' trains an encoder-decoder, which this recipe does not build; choose 'clm' for a "
            "decoder or 'mlm' for an encoder (model.is_causal=false)"
        )
    if not 0 < spec.mask_share < 1:
        raise ValueError(f"mask_share={spec.mask_share} must lie between 0 and 1")
    if is_causal is None:
        return
    if spec.objective == "mlm" and is_causal:
        raise ValueError("objective='mlm' needs a model that sees both sides: set model.is_causal=false, or objective='clm'")
    if spec.objective == "clm" and not is_causal:
        raise ValueError(
            "objective='clm' needs a causal model, and model.is_causal=false sees its targets; use objective='mlm'"
        )
    if spec.objective != "clm" and set(spec.metrics) - {"expert_balance"}:
        raise ValueError(
            f"metrics={sorted(spec.metrics)} measure causal models; only expert_balance goes with objective='mlm'"
        )
    if spec.objective != "clm" and spec.samples.prompts:
        raise ValueError("samples.prompts are continued by causal models only; leave them out with objective='mlm'")
