"""The `sdpa` backend: plain attention by torch's fused kernel, windows in bands, what it cannot express in query blocks."""

from functools import partial

import torch
from torch import nn
from transformers.utils.import_utils import is_torchdynamo_exporting, is_tracing

from .attention_scores import causal_mask, eager_attention, repeat_kv, window_of
from .blockwise_attention import blockwise_attention
from .causal_gradient import CausalAttention, serves
from .packed_attention import PackedRows, by_document
from .score_terms import NO_TERMS
from .windowed_attention import pays, windowed_attention


def sdpa_attention(module, query, key, value, mask, *, scaling, dropout=0.0, terms=NO_TERMS):
    """Torch's fused attention where it can express the scores, else query blocks. Shapes as `eager_attention`."""
    if isinstance(mask, PackedRows):

        def attend(query, key, value, alibi):
            options = {"scaling": scaling, "dropout": dropout, "terms": terms._replace(alibi=alibi)}
            return sdpa_attention(module, query, key, value, None, **options)[0]

        return by_document(attend, query, key, value, mask, terms.alibi), None
    if not terms.plain:
        if dropout > 0.0:
            return eager_attention(module, query, key, value, mask, scaling=scaling, dropout=dropout, terms=terms)
        if is_torchdynamo_exporting():  # an exported graph has no blocks
            return eager_attention(module, query, key, value, mask, scaling=scaling, terms=terms)[0], None
        return blockwise_attention(module, query, key, value, mask, scaling, terms), None
    groups, q_len = query.shape[1] // key.shape[1], query.shape[2]
    # a length that is traced compares to a symbol, which the kernel does not take
    causal = bool(mask is None and q_len > 1 and module.is_causal and key.shape[2] == q_len)
    if mask is None and not causal:
        mask = causal_mask(module, query, key, mask)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(query.dtype)
    if q_len == 1 and groups > 1 and (mask is None or mask.shape[1] == 1):
        # the queries that share a key-value head are the rows of one small matrix product: no key is copied
        packed = query.reshape(query.shape[0], key.shape[1], groups, query.shape[3])
        out = nn.functional.scaled_dot_product_attention(packed, key, value, mask, dropout, scale=scaling)
        return out.reshape(query.shape[0], 1, query.shape[1], value.shape[-1]), None
    kernel = partial(_fused_kernel, dropout=dropout, scaling=scaling)
    window = window_of(module) if causal else None
    if window is None or q_len <= window:
        return kernel(query, key, value, mask, causal).transpose(1, 2).contiguous(), None
    if not pays(q_len, window):
        return kernel(query, key, value, causal_mask(module, query, key, None), False).transpose(1, 2).contiguous(), None
    return windowed_attention(kernel, query, key, value, window).transpose(1, 2).contiguous(), None


def _fused_kernel(query, key, value, mask, causal, *, dropout, scaling):
    """Torch's fused attention over fewer key-value heads than queries, and over values narrower than keys."""
    groups, width = query.shape[1] // key.shape[1], value.shape[-1]
    if query.device.type == "cpu" and query.shape[-1] > width and not is_tracing(query):
        # torch's fused CPU kernel takes heads of one width only; without it Q x K scores would be kept
        value = nn.functional.pad(value, (0, query.shape[-1] - width))
    shared = groups > 1 and _kernel_shares_heads(query, key, value, mask)
    if shared and mask is None and serves(query, key, value, causal, dropout):
        return CausalAttention.apply(query, key, value, scaling)[..., :width]
    if not shared:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    options = {"is_causal": causal, "scale": scaling, "enable_gqa": shared}
    return nn.functional.scaled_dot_product_attention(query, key, value, mask, dropout, **options)[..., :width]


# the first release whose CPU kernel was tested to read one key-value head for several query heads
_CPU_SHARES_HEADS = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit()) >= (2, 13)


def _kernel_shares_heads(query, key, value, mask):
    """Whether a fused kernel takes fewer key-value heads than queries, so that no key is copied; else torch would not fuse."""
    if query.device.type == "cpu":
        return _CPU_SHARES_HEADS
    return query.device.type == "cuda" and mask is None and key.shape[-1] == value.shape[-1] <= 256
