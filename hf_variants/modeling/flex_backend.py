"""The `flex_attention` backend: the terms as a score function, the mask as a block mask.

Notable here: what causality and windows hide is a rule over two places, so no mask of the size Q x K is kept for the kernel to
read; every other mask is. Off the CPU the kernel is compiled, once for each kind of scores and each shape.
"""

from functools import lru_cache

import torch

from .attention_scores import causal_mask, window_of
from .packed_attention import PackedRows
from .plain_linear import in_autocast_dtype
from .relative_bias import RelativeBias
from .score_terms import NO_TERMS, rounded_heights


def flex_attention(module, query, key, value, mask, *, scaling, dropout=0.0, terms=NO_TERMS):
    """FlexAttention with the terms as a score function and the mask as a block mask. Shapes as `eager_attention`.

    Raises:
        ValueError: for dropout, and on a CPU for gradients and sinks, which its CPU kernel does not compute.
    """
    from torch.nn.attention.flex_attention import flex_attention as flex_kernel

    _refuse_what_is_not_computed(query, dropout, terms)
    query, key, value = in_autocast_dtype(query, key, value)
    if isinstance(mask, PackedRows):
        mask = causal_mask(module, query, key, mask)
    additive = mask.expand(query.shape[0], query.shape[1], -1, -1) if mask is not None and mask.dtype != torch.bool else None
    compiled = query.device.type != "cpu" and not torch.compiler.is_compiling()
    kernel = _compiled_flex() if compiled else flex_kernel
    options = {
        "score_mod": _score_function(terms, additive, query.shape[0]),
        "block_mask": _block_mask(module, query, key, mask) if additive is None else None,
        "scale": scaling,
        "enable_gqa": query.shape[1] != key.shape[1],
    }
    if terms.sinks is None:
        return kernel(query, key, value, **options).transpose(1, 2).contiguous(), None
    out, lse = _with_normaliser(kernel, query, key, value, options)
    # softmax with one more logit s is the softmax without it times sigmoid(lse - s)
    out = out * torch.sigmoid(lse - terms.sinks.view(1, -1, 1).to(lse.dtype)).unsqueeze(-1).to(out.dtype)
    return out.transpose(1, 2).contiguous(), None


def _refuse_what_is_not_computed(query, dropout, terms):
    if dropout > 0.0:
        raise ValueError(
            f"attention_dropout={dropout} is not computed by flex_attention; use 'sdpa' or 'eager', or set it to 0"
        )
    records = torch.is_grad_enabled() and query.requires_grad
    if query.device.type == "cpu" and (terms.sinks is not None or records):
        raise ValueError(
            "flex_attention on a CPU computes neither gradients nor sinks; use attn_implementation='sdpa' or 'eager'"
        )


def _block_mask(module, query, key, mask):
    """The block mask of a boolean mask, or of a causal layer's rule where none was built; None where nothing is hidden."""
    from torch.nn.attention.flex_attention import create_block_mask

    q_len, kv_len = query.shape[2], key.shape[2]
    if mask is not None:
        shown = mask.expand(query.shape[0], -1, -1, -1)
        rows, heads = query.shape[0], shown.shape[1] if shown.shape[1] > 1 else None

        def visible(b, h, q, k):
            return shown[b, h if shown.shape[1] > 1 else 0, q, k]

    elif module.is_causal and q_len > 1:
        rows, heads, visible = None, None, _causal_rule(kv_len - q_len, window_of(module))
    else:
        return None
    return create_block_mask(visible, rows, heads, q_len, kv_len, device=query.device)


def _causal_rule(offset, window):
    """(b, h, q, k) -> whether the query `offset` places behind its number sees a key: those before it, in its window."""
    if window is None:
        return lambda b, h, q, k: k <= q + offset
    return lambda b, h, q, k: (k <= q + offset) & (k > q + offset - window)


def _score_function(terms, additive, batch):
    """(score, b, h, q, k) -> score with soft-cap, bias and additive mask [batch, heads, Q, K]; None where there are none."""
    bias = _bias_function(terms.alibi, batch)
    if terms.softcap is None and bias is None and additive is None:
        return None

    def score_mod(score, b, h, q, k):
        if terms.softcap is not None:
            score = terms.softcap * torch.tanh(score / terms.softcap)
        if bias is not None:
            score = score + bias(b, h, q, k)
        return score if additive is None else score + additive[b, h, q, k]

    return score_mod


def _bias_function(alibi, batch):
    """(b, h, q, k) -> bias of an `AlibiBias` or `RelativeBias`; None where there is none."""
    if alibi is None:
        return None
    if isinstance(alibi, RelativeBias):
        relative = alibi.block(slice(None)).expand(batch, -1, -1, -1)
        return lambda b, h, q, k: relative[b, h, q, k]
    slopes, factor = alibi.slopes, alibi.factor
    queries, keys = (places.expand(batch, -1) for places in (alibi.queries, alibi.keys))
    if factor is None:
        return lambda b, h, q, k: -slopes[h] * (queries[b, q] - keys[b, k]).abs()
    return lambda b, h, q, k: (
        -factor * (rounded_heights(slopes[h], queries[b, q]) - rounded_heights(slopes[h], keys[b, k])).abs()
    )


def _with_normaliser(kernel, query, key, value, options):
    """Output and the log of the sum of exponents [B, heads, Q]; the keyword for it changed in torch 2.9."""
    request = _normaliser_request()
    if request is None:
        return kernel(query, key, value, return_lse=True, **options)
    out, more = kernel(query, key, value, return_aux=request, **options)
    return out, more.lse


@lru_cache(maxsize=1)
def _normaliser_request():
    from torch.nn.attention import flex_attention as module

    return module.AuxRequest(lse=True) if hasattr(module, "AuxRequest") else None


@lru_cache(maxsize=1)
def _compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention as flex_kernel

    return torch.compile(flex_kernel, dynamic=False)
