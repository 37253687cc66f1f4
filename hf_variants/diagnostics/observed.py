"""Lets a function see every attention of a model: scores before and after the soft-cap, the mask and the weights.

Notable here: the readable `eager` backend runs unchanged and is only watched, so what is seen is what the model computes; one
layer's tensors are handed over at a time and not kept.
"""

from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ..modeling.attention_backends import ATTENTION_FUNCTIONS
from ..modeling.attention_scores import causal_mask, eager_attention, repeat_kv
from ..modeling.cross_attention import CROSS_ATTENTIONS


@dataclass
class SeenAttention:
    """One attention of one layer.

    Attributes:
        layer: its index.
        scores: scaled products [B, heads, Q, K] in fp32, before soft-cap, bias and mask.
        softcap: the cap, or None.
        visible: bool [B or 1, 1, Q, K], what the mask lets through.
        weights: [B, heads, Q, K], fp32.
        keys, values: [B, kv heads, K, D].
        across: whether the keys are of another stack, or of images.
    """

    layer: int
    scores: torch.Tensor
    softcap: float | None
    visible: torch.Tensor
    weights: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    across: bool = False


@contextmanager
def observe_attention(model, see, beside=()):
    """Within the block, `see(SeenAttention)` is called for every attention of `model`, whose backend is `eager` meanwhile.

    `beside` are modules that share its config and stand outside it, such as the cross-attentions to images.

    Raises:
        ValueError: for a model that is not of the family, whose attention runs elsewhere.
    """
    if getattr(model.config, "model_type", None) != "variants":
        raise ValueError(
            f"model_type={getattr(model.config, 'model_type', None)!r} is not of this family; convert it first "
            "(hf_variants.convert.from_native)"
        )
    own = {id(module) for part in (model, *beside) for module in part.modules()}

    def watched(module, query, key, value, mask, *, scaling, dropout=0.0, terms):
        out, weights = eager_attention(module, query, key, value, mask, scaling=scaling, dropout=dropout, terms=terms)
        if id(module) in own:
            see(_seen(module, query, key, value, mask, scaling, terms, weights))
        return out, weights

    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    ATTENTION_FUNCTIONS["eager"] = watched
    try:
        yield
    finally:
        ATTENTION_FUNCTIONS["eager"] = eager_attention
        model.set_attn_implementation(before)


def _seen(module, query, key, value, mask, scaling, terms, weights):
    scores = (query @ repeat_kv(key, query.shape[1] // key.shape[1]).transpose(2, 3)).float() * scaling
    if terms.key_scale is not None:
        scores = scores * terms.key_scale.unsqueeze(2)
    mask = causal_mask(module, query, key, mask)
    if mask is None:
        visible = torch.ones(1, 1, *scores.shape[2:], dtype=torch.bool, device=scores.device)
    else:
        visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    across = isinstance(module, tuple(CROSS_ATTENTIONS.values()))
    return SeenAttention(module.layer_idx, scores, terms.softcap, visible, weights.float(), key, value, across)
