"""Attention backends: softmax(scale * q k^T, soft-capped, plus ALiBi, masked, with sinks) v, in four ways with one meaning.

    scores = scaling * q k^T                      [B, heads, Q, K]
    scores = cap * tanh(scores / cap)             soft-cap (Gemma 2, arXiv:2408.00118 §2)
    scores = scores + slope * -(distance)         ALiBi (arXiv:2108.12409), or T5's bias (`relative_bias`)
    scores = scores, or -inf where hidden         mask
    softmax over the keys and one sink logit      learned sink (gpt-oss; Xiao et al. 2023, arXiv:2309.17453)

Notable here: `eager` is the readable reference that every other backend is tested against. `sdpa` hands plain attention to
torch; what torch's kernel cannot express (soft-cap, ALiBi, sinks) runs in query blocks that are recomputed in the backward
pass, so no Q x K scores are kept. Nothing is dropped: what a backend cannot do it refuses.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from transformers.utils.import_utils import is_torchdynamo_exporting, is_tracing

from .packed_attention import PackedRows, by_document
from .plain_linear import in_autocast_dtype
from .relative_bias import RelativeBias
from .windowed_attention import pays, windowed_attention

BLOCK_ELEMENTS = 1 << 21


class AlibiBias(NamedTuple):
    """Slopes [heads] and the places of queries [B or 1, Q] and keys [B or 1, K]; the bias is slope * -|query - key|.

    With a `factor` the places are first turned into heights, which are rounded to bfloat16, and the bias is
    -|height of query - height of key| times that factor, the scale of the scores (Falcon-RW).
    """

    slopes: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    factor: float | None = None

    def block(self, rows):
        """Bias [B or 1, heads, len(rows), K] of the queries `rows` (a slice)."""
        if self.factor is None:
            distance = (self.queries[:, rows].unsqueeze(2) - self.keys.unsqueeze(1)).abs()
            return self.slopes.view(-1, 1, 1) * -distance.unsqueeze(1).to(self.slopes.dtype)
        slopes = self.slopes.view(-1, 1)
        queries, keys = (rounded_heights(slopes, part.unsqueeze(1)) for part in (self.queries[:, rows], self.keys))
        return -(queries.unsqueeze(3) - keys.unsqueeze(2)).abs() * self.factor

    def scaled(self, scaling):
        """The bias for scores of the scale `scaling`, which the plain form does not look at."""
        return self if self.factor is None else self._replace(factor=scaling)


def rounded_heights(slopes, places):
    """slope * place with both, and their product, rounded to bfloat16; in fp32."""
    return (slopes.to(torch.bfloat16) * places.to(torch.bfloat16)).to(torch.float32)


class ScoreTerms(NamedTuple):
    """What acts on the scores beside scale and mask: soft-cap, bias, sink logits [heads], a factor per key [B, heads, K].

    The bias `alibi` is an `AlibiBias` or a `RelativeBias`: a tensor, the places of queries and keys, and plain numbers.
    """

    softcap: float | None = None
    alibi: AlibiBias | RelativeBias | None = None
    sinks: torch.Tensor | None = None
    key_scale: torch.Tensor | None = None

    @property
    def plain(self):
        return all(term is None for term in self)


NO_TERMS = ScoreTerms()


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
        if is_torchdynamo_exporting():  # an exported graph has no blocks, and logsumexp would fix its lengths
            return eager_attention(module, query, key, value, mask, scaling=scaling, terms=terms)[0], None
        return blockwise_attention(module, query, key, value, mask, scaling, terms), None
    groups, q_len = query.shape[1] // key.shape[1], query.shape[2]
    causal = mask is None and q_len > 1 and module.is_causal and key.shape[2] == q_len
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


def blockwise_attention(module, query, key, value, mask, scaling, terms):
    """Exact attention in blocks of queries, recomputed in the backward pass. As `eager_attention`, returns the output."""
    query, key, value = in_autocast_dtype(query, key, value)
    slopes = q_index = k_index = bias = None
    if terms.alibi is not None:
        slopes, q_index, k_index, *numbers = terms.alibi
        bias = (type(terms.alibi), tuple(numbers))
    causal = mask is None and module.is_causal and query.shape[2] > 1
    window = window_of(module) if causal else None
    rules = _Rules(scaling, terms.softcap, causal, key.shape[2] - query.shape[2], bias, window)
    tensors = (query, key, value, mask, terms.sinks, slopes, q_index, k_index)
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    out = _BlockwiseAttention.apply(*tensors, rules) if needs_grad else _forward_blocks(*tensors, rules)[0]
    return out.transpose(1, 2).contiguous()


class _Rules(NamedTuple):
    scaling: float
    softcap: float | None
    causal: bool
    offset: int
    bias: tuple | None
    window: int | None

    def bias_of(self, *tensors):
        """The bias of a slope or table, and of places of queries and keys."""
        kind, numbers = self.bias
        return kind(*tensors, *numbers)


def _blocks(query, key):
    """Slices of the query axis whose scores hold at most BLOCK_ELEMENTS numbers; one slice while tracing."""
    q_len = query.shape[2]
    if is_tracing(query):
        return [slice(0, q_len)]
    rows = max(16, BLOCK_ELEMENTS // max(query.shape[0] * query.shape[1] * key.shape[2], 1))
    return [slice(start, min(start + rows, q_len)) for start in range(0, q_len, rows)]


def _grouped(states, kv_heads):
    """[B, heads, Q, D] -> [B, kv_heads, groups * Q, D]: the queries of one key-value head as rows of one matrix."""
    batch, heads, q_len, dim = states.shape
    return states.reshape(batch, kv_heads, heads // kv_heads * q_len, dim)


def _block_scores(query, key, mask, slopes, q_index, k_index, rules, rows, span):
    """Scores [B, heads, rows, keys of `span`] in fp32 of one block, and tanh(scores / cap) where there is a cap."""
    batch, heads = query.shape[:2]
    scores = _grouped(query[:, :, rows], key.shape[1]) @ key[:, :, span].transpose(2, 3)
    scores = scores.view(batch, heads, -1, span.stop - span.start).float().mul_(rules.scaling)
    tanh = None
    if rules.softcap is not None:
        tanh = scores.div_(rules.softcap).tanh_()
        scores = rules.softcap * tanh
    if slopes is not None:
        scores = scores + rules.bias_of(slopes, q_index, k_index[:, span]).block(rows)
    if mask is not None:
        scores = apply_mask(scores, mask[:, :, rows, span])
    elif rules.causal:
        _hide_corners(scores, rules, rows, span)
    return scores, tanh


def _hide_corners(scores, rules, rows, span):
    """Hide in place, in a block, the keys behind their query and those before its window: only at the block's two ends."""
    first, last = rows.start + rules.offset, rows.stop + rules.offset - 1
    columns = torch.arange(span.start, span.stop, device=scores.device)
    queries = torch.arange(first, last + 1, device=scores.device).unsqueeze(1)
    right = first + 1 - span.start
    scores[..., right:].masked_fill_(columns[right:] > queries, -torch.inf)
    if rules.window is not None:
        left = max(last - rules.window + 1 - span.start, 0)
        scores[..., :left].masked_fill_(columns[:left] <= queries - rules.window, -torch.inf)


def _span(rules, rows, kv_len):
    """The keys a block can see: under the plain causal rule none behind its last query, nor before its first one's window."""
    if not rules.causal:
        return slice(0, kv_len)
    start = 0 if rules.window is None else max(rows.start + rules.offset - rules.window + 1, 0)
    return slice(start, min(rows.stop + rules.offset, kv_len))


def _forward_blocks(query, key, value, mask, sinks, slopes, q_index, k_index, rules):
    batch, heads, q_len, _ = query.shape
    out, normaliser = [], []
    for rows in _blocks(query, key):
        span = _span(rules, rows, key.shape[2])
        scores, _ = _block_scores(query, key, mask, slopes, q_index, k_index, rules, rows, span)
        lse = scores.logsumexp(dim=-1, keepdim=True)
        if sinks is not None:
            lse = torch.logaddexp(lse, sinks.float().view(1, -1, 1, 1))
        weights = (scores - lse.masked_fill(lse == -math.inf, 0.0)).exp().to(value.dtype)
        block = _grouped(weights, value.shape[1]) @ value[:, :, span]
        out.append(block.view(batch, heads, -1, value.shape[-1]))
        normaliser.append(lse)
    return torch.cat(out, dim=2), torch.cat(normaliser, dim=2)


class _BlockwiseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, mask, sinks, slopes, q_index, k_index, rules):
        out, lse = _forward_blocks(query, key, value, mask, sinks, slopes, q_index, k_index, rules)
        ctx.save_for_backward(query, key, value, mask, sinks, slopes, q_index, k_index, out, lse)
        ctx.rules = rules
        return out

    @staticmethod
    def backward(ctx, grad_out):
        query, key, value, mask, sinks, slopes, q_index, k_index, out, lse = ctx.saved_tensors
        rules, kv_heads, batch = ctx.rules, key.shape[1], query.shape[0]
        grad_query = torch.empty_like(query)
        grad_key, grad_value = (torch.zeros(t.shape, dtype=torch.float32, device=t.device) for t in (key, value))
        grad_mask = torch.zeros_like(mask) if mask is not None and ctx.needs_input_grad[3] else None
        grad_table = torch.zeros(slopes.shape, dtype=torch.float32, device=key.device) if ctx.needs_input_grad[5] else None
        delta = (grad_out.float() * out.float()).sum(-1, keepdim=True)
        for rows in _blocks(query, key):
            span = _span(rules, rows, key.shape[2])
            scores, tanh = _block_scores(query, key, mask, slopes, q_index, k_index, rules, rows, span)
            block_lse = lse[:, :, rows]
            weights = (scores - block_lse.masked_fill(block_lse == -math.inf, 0.0)).exp()
            grad_rows = _grouped(grad_out[:, :, rows], kv_heads)
            grad_value[:, :, span] += _grouped(weights.to(value.dtype), kv_heads).transpose(2, 3) @ grad_rows
            grad_weights = (grad_rows @ value[:, :, span].transpose(2, 3)).view_as(weights)
            grad_scores = weights * (grad_weights.float() - delta[:, :, rows])
            if grad_mask is not None:
                grad_mask[:, :, rows, span] += grad_scores.sum_to_size(grad_mask[:, :, rows, span].shape)
            if grad_table is not None:
                grad_table += rules.bias_of(slopes, q_index, k_index[:, span]).table_gradient(rows, grad_scores)
            if tanh is not None:
                grad_scores = grad_scores * (1 - tanh * tanh)
            grad_scores = _grouped((grad_scores * rules.scaling).to(key.dtype), kv_heads)
            grad_query[:, :, rows] = (grad_scores @ key[:, :, span]).view(batch, query.shape[1], -1, query.shape[3])
            grad_key[:, :, span] += grad_scores.transpose(2, 3) @ _grouped(query[:, :, rows], kv_heads)
        grad_sinks = None
        if sinks is not None and ctx.needs_input_grad[4]:
            share = (sinks.float().view(1, -1, 1, 1) - lse).exp()
            grad_sinks = -(share * delta).sum(dim=(0, 2, 3)).to(sinks.dtype)
        return (
            grad_query,
            grad_key.to(key.dtype),
            grad_value.to(value.dtype),
            grad_mask,
            grad_sinks,
            None if grad_table is None else grad_table.to(slopes.dtype),
            None,
            None,
            None,
        )


ATTENTION_FUNCTIONS = {"eager": eager_attention, "sdpa": sdpa_attention, "flex_attention": flex_attention}


def attention_function(name):
    """The backend of that name. Raises ValueError for one that the family has not been made exact on."""
    if name not in ATTENTION_FUNCTIONS:
        raise ValueError(
            f"attn_implementation={name!r} is not supported by this family, whose toggles it could drop; choose from "
            f"{list(ATTENTION_FUNCTIONS)}"
        )
    return ATTENTION_FUNCTIONS[name]
