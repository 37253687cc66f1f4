"""Lets a function see every attention of a model: scores before and after the soft-cap, the mask and the weights.

Notable here: the readable `eager` backend runs unchanged and is only watched, so what is seen is what the model computes; one
layer's tensors are handed over at a time and not kept. Blocks may stand within each other, one for each stack of a model.
What a query-key norm does is seen by running a layer's attention a second time without it, on the same states.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature

import torch

from ..modeling.attention_backends import ATTENTION_FUNCTIONS
from ..modeling.attention_scores import causal_mask, repeat_kv
from ..modeling.cross_attention import CROSS_ATTENTIONS
from ..modeling.grouped_attention import VariantsAttention
from ..modeling.latent_attention import NoKeyNorm, VariantsLatentAttention
from ..modeling.null_modules import Identity


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
        unnormed: scores of the same states without the query-key norm, or None where there is none or keys go to a cache.
    """

    layer: int
    scores: torch.Tensor
    softcap: float | None
    visible: torch.Tensor
    weights: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    across: bool = False
    unnormed: torch.Tensor | None = None


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
    modules = [module for part in (model, *beside) for module in part.modules()]
    own = set(map(id, modules))
    inner = ATTENTION_FUNCTIONS["eager"]
    without_norm = _WithoutNorm()

    def watched(module, query, key, value, mask, *, scaling, dropout=0.0, terms):
        out, weights = inner(module, query, key, value, mask, scaling=scaling, dropout=dropout, terms=terms)
        if without_norm.running:
            without_norm.scores = _scores(query, key, scaling, terms)
        elif id(module) in own:
            see(_seen(module, query, key, value, mask, scaling, terms, weights, without_norm.take()))
        return out, weights

    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    ATTENTION_FUNCTIONS["eager"] = watched
    hooks = [
        module.register_forward_pre_hook(hook, with_kwargs=True)
        for hook, which in ((_refuse_absorbed, _is_latent), (without_norm, _has_norm))
        for module in filter(which, modules)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        ATTENTION_FUNCTIONS["eager"] = inner
        model.set_attn_implementation(before)


class _WithoutNorm:
    """A hook before an attention: runs it once without its query-key norm, and keeps the scores until they are taken."""

    def __init__(self):
        self.running, self.scores = False, None

    def __call__(self, module, args, kwargs):
        if _given(module, args, kwargs).get("past_key_values") is not None:
            return  # a cache would keep these keys too
        norms = {name: module._modules[name] for name in ("q_norm", "k_norm")}
        module.q_norm, module.k_norm, self.running = Identity(), NoKeyNorm() if _is_latent(module) else Identity(), True
        try:
            # past the hooks, this one among them
            module.forward(*args, **kwargs)
        finally:
            module.q_norm, module.k_norm, self.running = norms["q_norm"], norms["k_norm"], False

    def take(self):
        scores, self.scores = self.scores, None
        return scores


def _refuse_absorbed(module, args, kwargs):
    given = _given(module, args, kwargs)
    if given.get("past_key_values") is not None and module._absorbs(True, given["hidden_states"].shape[1]):
        raise ValueError(
            "past_key_values is given, and latent attention reads a cache without the keys that could be seen; run the whole "
            "row with use_cache=False"
        )


def _given(module, args, kwargs):
    """{name: argument} of a call of an attention."""
    return signature(module.forward).bind(*args, **kwargs).arguments


def _is_latent(module):
    return isinstance(module, VariantsLatentAttention)


def _has_norm(module):
    return isinstance(module, (VariantsAttention, VariantsLatentAttention)) and not isinstance(module.q_norm, Identity)


def _scores(query, key, scaling, terms):
    scores = (query @ repeat_kv(key, query.shape[1] // key.shape[1]).transpose(2, 3)).float() * scaling
    return scores if terms.key_scale is None else scores * terms.key_scale.unsqueeze(2)


def _seen(module, query, key, value, mask, scaling, terms, weights, unnormed):
    scores = _scores(query, key, scaling, terms)
    mask = causal_mask(module, query, key, mask)
    if mask is None:
        visible = torch.ones(1, 1, *scores.shape[2:], dtype=torch.bool, device=scores.device)
    else:
        visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    across = isinstance(module, tuple(CROSS_ATTENTIONS.values()))
    return SeenAttention(module.layer_idx, scores, terms.softcap, visible, weights.float(), key, value, across, unnormed)
