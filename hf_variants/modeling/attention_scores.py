"""Attention backends: softmax(scale * q k^T, soft-capped, plus ALiBi, masked, with sinks) v, in four ways with one meaning.

    scores = scaling * q k^T                      [B, heads, Q, K]
    scores = cap * tanh(scores / cap)             soft-cap (Gemma 2, arXiv:2408.00118 §2)
    scores = scores + slope * -(distance)         ALiBi (arXiv:2108.12409), or T5's bias (`relative_bias`)
    scores = scores, or -inf where hidden         mask
    softmax over the keys and one sink logit      learned sink (gpt-oss; Xiao et al. 2023, arXiv:2309.17453)

Notable here: `eager`, below, is the readable reference that every other backend is tested against. `fused_attention` hands
plain attention to torch; what torch's kernel cannot express (soft-cap, ALiBi, sinks) runs in `blockwise_attention`. Nothing is
dropped: what a backend cannot do it refuses.
"""

import torch
from torch import nn

from .packed_attention import PackedRows
from .score_terms import NO_TERMS


def repeat_kv(states, groups):
    """[B, kv_heads, K, D] -> [B, kv_heads * groups, K, D], each head repeated in place."""
    return states if groups == 1 else states.repeat_interleave(groups, dim=1)


def apply_mask(scores, mask):
    """Hide by a boolean mask (true = visible) or add a float one."""
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def causal_mask(module, query, key, mask):
    """The mask to use where none was built: for several queries of a causal layer those before, in its window; else none."""
    if isinstance(mask, PackedRows):
        visible = causal_mask(module, query, key, None)
        return mask.same_document() if visible is None else visible & mask.same_document()
    q_len, kv_len = query.shape[2], key.shape[2]
    if mask is not None or q_len == 1 or not module.is_causal:
        return mask
    visible = torch.ones(q_len, kv_len, dtype=torch.bool, device=query.device).tril(kv_len - q_len)
    if window_of(module) is not None:
        visible = visible.triu(kv_len - q_len - window_of(module) + 1)
    return visible.view(1, 1, q_len, kv_len)


def window_of(module):
    """Visible tokens of a sliding attention layer, or None."""
    return getattr(module, "window", None)


def eager_attention(module, query, key, value, mask, *, scaling, dropout=0.0, terms=NO_TERMS):
    """The reference. Shapes: query [B, heads, Q, D], key [B, kv_heads, K, D], value [B, kv_heads, K, Dv].

    Returns the output [B, Q, heads, Dv] and the weights [B, heads, Q, K] (without the sink's share).
    """
    key, value = (repeat_kv(states, query.shape[1] // states.shape[1]) for states in (key, value))
    mask = causal_mask(module, query, key, mask)
    weights = attention_weights((query @ key.transpose(2, 3)).float() * scaling, mask, terms)
    weights = nn.functional.dropout(weights.to(query.dtype), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def attention_weights(scores, mask, terms):
    """Softmax weights of scaled fp32 scores [B, heads, Q, K] under `mask` and `terms`."""
    if terms.key_scale is not None:
        scores = scores * terms.key_scale.unsqueeze(2)
    if terms.softcap is not None:
        scores = terms.softcap * torch.tanh(scores / terms.softcap)
    if terms.alibi is not None:
        scores = scores + terms.alibi.block(slice(None))
    scores = apply_mask(scores, mask)
    if terms.sinks is None:
        return scores.softmax(dim=-1)
    sinks = terms.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]
