"""The gradient of torch's fused causal attention on a CPU, taken in blocks, where key-value heads are shared by queries.

torch's backward pass runs one thread per key-value head of a row, so three of them keep two threads busy for the time of four.
Here the tokens are cut into blocks that are rows of one batch: the blocks on the diagonal are one causal call, and those below
it a few calls without a mask, each over twice as many keys as the one before.

    n = 4    a . . .        a: causal, all four at once
             b a . .        b: two blocks at once, each one block of keys
             c c a .        c: two blocks of queries at once, over two blocks of keys
             c c b a

Any part of the gradient can be taken by itself from the output and the log of the sum of exponents of the whole row (Dao et
al. 2022, arXiv:2205.14135, Algorithm 4).

Notable here: the forward pass is torch's own kernel, bit by bit. Only fp32 is served: in bf16, and where every query has its
own key, torch's single call is as fast.
"""

import torch

from .plain_linear import records_gradients

# Tokens from which a row is cut, the fewest blocks, and the most tokens of a block.
SHORTEST, FEWEST_BLOCKS, LONGEST_BLOCK = 512, 4, 256


def serves(query, key, value, causal, dropout):
    """Whether `causal_attention` stands in for torch's call: shapes as there, fp32 training on a CPU alone."""
    if not (causal and dropout == 0 and query.device.type == "cpu" and query.shape[1] > key.shape[1]):
        return False
    length, width = query.shape[2:]
    if length < SHORTEST or key.shape[2] != length or not width == key.shape[3] == value.shape[3]:
        return False
    if any(part.dtype is not torch.float32 or part.stride(-1) != 1 for part in (query, key, value)):
        return False
    # who asks torch for another kernel gets it: it may be one that can be differentiated twice
    plain = not torch.is_autocast_enabled("cpu") and torch.backends.cuda.flash_sdp_enabled()
    return plain and records_gradients(query, key, value)


class CausalAttention(torch.autograd.Function):
    """Causal attention of query [B, heads, T, D] over key and value [B, kv_heads, T, D]; returns [B, heads, T, D]."""

    @staticmethod
    def forward(ctx, query, key, value, scaling):
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True, scale=scaling)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.scaling = scaling
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return *causal_gradient(grad, *ctx.saved_tensors, ctx.scaling), None


def causal_gradient(grad, query, key, value, out, lse, scaling):
    """Gradients of query, key and value from that of `out` [B, heads, T, D]; lse [B, heads, T], the log of the sums."""
    length, blocks = query.shape[2], FEWEST_BLOCKS
    while blocks * LONGEST_BLOCK < length:
        blocks *= 2
    more = -length % blocks
    # behind the last token come zeros: no token sees them, and their own gradient is zero
    grad, query, key, value, out = (_padded(part, more) for part in (grad, query, key, value, out))
    lse = torch.nn.functional.pad(lse, (0, more)) if more else lse
    rows, keys = (grad, query, out, lse), (key, value)
    found = [
        _from_blocks(part, blocks) for part in _part(*(_to_blocks(each, blocks) for each in (*rows, *keys)), True, scaling)
    ]
    span = 1
    while span < blocks:
        shape = (blocks // (2 * span), 2, span)
        below = _part(*(_lower(each, shape) for each in rows), *(_left(each, shape) for each in keys), False, scaling)
        grad_query, *grad_keys = (part.unflatten(0, (query.shape[0], shape[0], span)) for part in below)
        _cut(found[0], shape)[:, :, :, 1] += grad_query.permute(0, 3, 1, 2, 4, 5)
        for whole, part in zip(found[1:], grad_keys, strict=True):
            whole = _cut(whole, (shape[0], 2, 1))[:, :, :, 0, 0]
            whole += part.sum(2).transpose(1, 2)
        span *= 2
    return tuple(part[:, :, :length] for part in found)


def _part(grad, query, out, lse, key, value, causal, scaling):
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return backward(grad, query, key, value, out, lse, 0.0, causal, scale=scaling)


def _padded(states, more):
    return torch.nn.functional.pad(states, (0, 0, 0, more)) if more else states


def _to_blocks(states, blocks):
    """[B, heads, T, ...] -> [B * blocks, heads, T / blocks, ...]."""
    return states.unflatten(2, (blocks, -1)).transpose(1, 2).flatten(0, 1)


def _from_blocks(states, blocks):
    """[B * blocks, heads, n, D] -> [B, heads, blocks * n, D]."""
    return states.unflatten(0, (-1, blocks)).transpose(1, 2).flatten(2, 3)


def _cut(states, shape):
    """[B, heads, T, ...] -> [B, heads, pairs, 2, span, n, ...], a view; shape: (pairs, 2, span)."""
    return states.unflatten(2, (*shape, -1))


def _lower(states, shape):
    """The queries of the lower span of each pair, block by block: [B * pairs * span, heads, n, ...]."""
    return _cut(states, shape)[:, :, :, 1].movedim(1, 3).flatten(0, 2)


def _left(states, shape):
    """The keys of the upper span of each pair, for each of the blocks below: [B * pairs * span, heads, span * n, D]."""
    upper = _cut(states, (shape[0], 2, 1))[:, :, :, 0, 0].transpose(1, 2)
    return upper.unsqueeze(2).expand(-1, -1, shape[2], -1, -1, -1).flatten(0, 2)
