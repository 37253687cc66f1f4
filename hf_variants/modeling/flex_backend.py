"""The `flex_attention` backend: the terms as a score function, the mask as a block mask."""

import torch

from .attention_scores import causal_mask
from .plain_linear import in_autocast_dtype
from .relative_bias import RelativeBias
from .score_terms import NO_TERMS, rounded_heights


def flex_attention(module, query, key, value, mask, *, scaling, dropout=0.0, terms=NO_TERMS):
    """FlexAttention with the terms as a score function and the mask as a block mask. Shapes as `eager_attention`.

    Raises ValueError for dropout, and on a CPU for gradients and sinks, which its CPU kernel does not compute.
    """
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as flex_kernel

    on_cpu = query.device.type == "cpu"
    if dropout > 0.0:
        raise ValueError(
            f"attention_dropout={dropout} is not computed by flex_attention; use 'sdpa' or 'eager', or set it to 0"
        )
    if on_cpu and (terms.sinks is not None or (torch.is_grad_enabled() and query.requires_grad)):
        raise ValueError(
            "flex_attention on a CPU computes neither gradients nor sinks; use attn_implementation='sdpa' or 'eager'"
        )
    query, key, value = in_autocast_dtype(query, key, value)
    mask = causal_mask(module, query, key, mask)
    block_mask, additive = None, None
    if mask is not None and mask.dtype == torch.bool:
        shown = mask.expand(query.shape[0], -1, -1, -1)

        def visible(b, h, q, k):
            return shown[b, h if shown.shape[1] > 1 else 0, q, k]

        heads = shown.shape[1] if shown.shape[1] > 1 else None
        block_mask = create_block_mask(visible, query.shape[0], heads, query.shape[2], key.shape[2], device=query.device)
    elif mask is not None:
        additive = mask.expand(query.shape[0], query.shape[1], -1, -1)

    learned = isinstance(terms.alibi, RelativeBias)
    if learned:
        relative = terms.alibi.block(slice(None)).expand(query.shape[0], -1, -1, -1)
    elif terms.alibi is not None:
        slopes, factor = terms.alibi.slopes, terms.alibi.factor
        places_q, places_k = (places.expand(query.shape[0], -1) for places in terms.alibi[1:3])

    def alibi(b, h, q, k):
        if factor is None:
            return slopes[h] * (places_q[b, q] - places_k[b, k]).abs()
        return factor * (rounded_heights(slopes[h], places_q[b, q]) - rounded_heights(slopes[h], places_k[b, k])).abs()

    def score_mod(score, b, h, q, k):
        if terms.softcap is not None:
            score = terms.softcap * torch.tanh(score / terms.softcap)
        if learned:
            score = score + relative[b, h, q, k]
        elif terms.alibi is not None:
            score = score - alibi(b, h, q, k)
        return score if additive is None else score + additive[b, h, q, k]

    kernel = flex_kernel if on_cpu or torch.compiler.is_compiling() else _compiled_flex()
    options = {
        "score_mod": score_mod,
        "block_mask": block_mask,
        "scale": scaling,
        "enable_gqa": query.shape[1] != key.shape[1],
    }
    if terms.sinks is None:
        return kernel(query, key, value, **options).transpose(1, 2).contiguous(), None
    out, lse = kernel(query, key, value, return_lse=True, **options)
    # softmax with one more logit s is the softmax without it times sigmoid(lse - s)
    out = out * torch.sigmoid(lse - terms.sinks.view(1, -1, 1).to(lse.dtype)).unsqueeze(-1).to(out.dtype)
    return out.transpose(1, 2).contiguous(), None


_FLEX = {}


def _compiled_flex():
    if "kernel" not in _FLEX:
        from torch.nn.attention.flex_attention import flex_attention as flex_kernel

        _FLEX["kernel"] = torch.compile(flex_kernel, dynamic=False)
    return _FLEX["kernel"]
