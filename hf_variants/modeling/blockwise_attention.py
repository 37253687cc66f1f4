"""Exact attention in blocks of queries, recomputed in the backward pass, so that no Q x K scores are kept.

Notable here: it computes every term, which torch's fused kernel does not, and sees only the keys that causality and a window
leave to a block. The backward pass is that of FlashAttention (Dao et al. 2022, arXiv:2205.14135, Algorithm 4), and the sink's
share of the softmax is in its normaliser. Asked for a graph of the gradient, it goes through the reference.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from transformers.utils.import_utils import is_tracing

from .attention_scores import apply_mask, eager_attention, window_of
from .memory_lean import through
from .plain_linear import in_autocast_dtype
from .score_terms import ScoreTerms

# Numbers of a block of scores: on a CPU what its cache holds; elsewhere a block must be worth the dozens of kernels it starts.
BLOCK_ELEMENTS, ACCELERATOR_BLOCK_ELEMENTS = 1 << 21, 1 << 26


def blockwise_attention(module, query, key, value, mask, scaling, terms):
    """Exact attention in blocks of queries, recomputed in the backward pass. As `eager_attention`, returns the output."""
    query, key, value = in_autocast_dtype(query, key, value)
    slopes = q_index = k_index = bias = None
    if terms.alibi is not None:
        slopes, q_index, k_index, *numbers = terms.alibi
        bias = (type(terms.alibi), tuple(numbers))
    causal = mask is None and module.is_causal and query.shape[2] > 1
    window = window_of(module) if causal else None
    plain = partial(_eager, module, scaling, terms.softcap, bias)
    rules = _Rules(scaling, terms.softcap, causal, key.shape[2] - query.shape[2], bias, window, plain)
    tensors = (query, key, value, mask, terms.sinks, slopes, q_index, k_index)
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    out = _BlockwiseAttention.apply(*tensors, rules) if needs_grad else _forward_blocks(*tensors, rules, keeps=False)[0]
    return out.transpose(1, 2).contiguous()


def _eager(module, scaling, softcap, bias, query, key, value, mask, sinks, *tables):
    """The reference on the tensors of `_BlockwiseAttention`; output [B, heads, Q, Dv]."""
    terms = ScoreTerms(softcap, None if bias is None else bias[0](*tables, *bias[1]), sinks)
    return eager_attention(module, query, key, value, mask, scaling=scaling, terms=terms)[0].transpose(1, 2)


class _Rules(NamedTuple):
    scaling: float
    softcap: float | None
    causal: bool
    offset: int
    bias: tuple | None
    window: int | None
    plain: Callable

    def bias_of(self, *tensors):
        """The bias of a slope or table, and of places of queries and keys."""
        kind, numbers = self.bias
        return kind(*tensors, *numbers)


def _blocks(query, key):
    """Slices of the query axis whose scores hold at most so many numbers; one slice while tracing."""
    q_len = query.shape[2]
    if is_tracing(query):
        return [slice(0, q_len)]
    numbers = BLOCK_ELEMENTS if query.device.type == "cpu" else ACCELERATOR_BLOCK_ELEMENTS
    rows = max(16, numbers // max(query.shape[0] * query.shape[1] * key.shape[2], 1))
    return [slice(start, min(start + rows, q_len)) for start in range(0, q_len, rows)]


def _grouped(states, kv_heads):
    """[B, heads, Q, D] -> [B, kv_heads, groups * Q, D]: the queries of one key-value head as rows of one matrix."""
    batch, heads, q_len, dim = states.shape
    return states.reshape(batch, kv_heads, heads // kv_heads * q_len, dim)


def _block_scores(query, key, mask, slopes, q_index, k_index, rules, rows, span):
    """Scores [B, heads, rows, keys of `span`] in fp32 of one block, and tanh(scores / cap) where there is a cap."""
    batch, heads = query.shape[:2]
    scores = _grouped(query[:, :, rows], key.shape[1]) @ key[:, :, span].transpose(2, 3)
    # scaled as the reference does, not the fewer numbers of the queries: the rounding is that of native classes
    scores = scores.view(batch, heads, -1, span.stop - span.start).float().mul_(rules.scaling)
    tanh = None
    if rules.softcap is not None:
        tanh = scores.div_(rules.softcap).tanh_()
        scores = rules.softcap * tanh
    if slopes is not None:
        scores = rules.bias_of(slopes, q_index, k_index[:, span]).add_to(scores, rows)
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


def _softmax(scores, sinks, hides_rows, wants_normaliser):
    """Weights without the sinks' share, and the log of the sum of exponents [..., 1] or None; a row without a visible key and
    without a sink gets zeros and -inf.
    """
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)), dim=-1)
    weights, lse = scores.softmax(dim=-1), None
    if hides_rows or wants_normaliser:
        top = scores.amax(dim=-1, keepdim=True)
        hidden = top == -math.inf
        if hides_rows:
            weights = weights.masked_fill(hidden, 0.0)
        # the largest weight is exp(top - normaliser): cheaper than another sum of exponents
        lse = (top - weights.amax(dim=-1, keepdim=True).log()).masked_fill(hidden, -math.inf)
    return (weights if sinks is None else weights[..., :-1]), lse


def _forward_blocks(query, key, value, mask, sinks, slopes, q_index, k_index, rules, keeps=True):
    """Output [B, heads, Q, Dv], and the log of the sum of exponents [B, heads, Q, 1] where it is kept."""
    batch, heads, q_len, _ = query.shape
    out, normaliser = [], []
    for rows in _blocks(query, key):
        span = _span(rules, rows, key.shape[2])
        scores, _ = _block_scores(query, key, mask, slopes, q_index, k_index, rules, rows, span)
        weights, lse = _softmax(scores, sinks, mask is not None, keeps)
        block = _grouped(weights.to(value.dtype), value.shape[1]) @ value[:, :, span]
        out.append(block.view(batch, heads, -1, value.shape[-1]))
        normaliser.append(lse)
    return torch.cat(out, dim=2), torch.cat(normaliser, dim=2) if keeps else None


class _BlockwiseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, mask, sinks, slopes, q_index, k_index, rules):
        out, lse = _forward_blocks(query, key, value, mask, sinks, slopes, q_index, k_index, rules)
        ctx.save_for_backward(query, key, value, mask, sinks, slopes, q_index, k_index, out, lse)
        ctx.rules = rules
        return out

    @staticmethod
    def backward(ctx, grad_out):
        *inputs, out, lse = ctx.saved_tensors
        query, key, value, mask, sinks, slopes, q_index, k_index = inputs
        rules, kv_heads, batch = ctx.rules, key.shape[1], query.shape[0]
        if torch.is_grad_enabled():
            return *through(rules.plain, inputs, grad_out), None
        grad_query = torch.empty_like(query)
        grad_key, grad_value = (torch.zeros(t.shape, dtype=torch.float32, device=t.device) for t in (key, value))
        grad_mask = torch.zeros_like(mask) if mask is not None and ctx.needs_input_grad[3] else None
        grad_table = torch.zeros(slopes.shape, dtype=torch.float32, device=key.device) if ctx.needs_input_grad[5] else None
        delta = (grad_out.float() * out.float()).sum(-1, keepdim=True)
        for rows in _blocks(query, key):
            span = _span(rules, rows, key.shape[2])
            scores, tanh = _block_scores(query, key, mask, slopes, q_index, k_index, rules, rows, span)
            block_lse = lse[:, :, rows]
            weights = scores.sub_(block_lse.masked_fill(block_lse == -math.inf, 0.0)).exp_()
            grad_rows = _grouped(grad_out[:, :, rows], kv_heads)
            grad_value[:, :, span] += _grouped(weights.to(value.dtype), kv_heads).transpose(2, 3) @ grad_rows
            grad_scores = (grad_rows @ value[:, :, span].transpose(2, 3)).view_as(weights).float()
            grad_scores = grad_scores.sub_(delta[:, :, rows]).mul_(weights)
            if grad_mask is not None:
                grad_mask[:, :, rows, span] += grad_scores.sum_to_size(grad_mask[:, :, rows, span].shape)
            if grad_table is not None:
                grad_table += rules.bias_of(slopes, q_index, k_index[:, span]).table_gradient(rows, grad_scores)
            if tanh is not None:
                grad_scores.mul_(tanh.square_().neg_().add_(1))
            grad_scores = _grouped(grad_scores.to(key.dtype), kv_heads)
            grad_block = (grad_scores @ key[:, :, span]).mul_(rules.scaling)
            grad_query[:, :, rows] = grad_block.view(batch, query.shape[1], -1, query.shape[3])
            grad_key[:, :, span] += grad_scores.transpose(2, 3) @ _grouped(query[:, :, rows], kv_heads)
        grad_sinks = None
        if sinks is not None and ctx.needs_input_grad[4]:
            share = (sinks.float().view(1, -1, 1, 1) - lse).exp()
            grad_sinks = -(share * delta).sum(dim=(0, 2, 3)).to(sinks.dtype)
        return (
            grad_query,
            grad_key.mul_(rules.scaling).to(key.dtype),
            grad_value.to(value.dtype),
            grad_mask,
            grad_sinks,
            None if grad_table is None else grad_table.to(slopes.dtype),
            None,
            None,
            None,
        )
