"""Causal attention through a window, at the cost of the window: time and memory grow with Q x window, not with Q x K.

Queries and keys are cut into blocks of at least the window; a block's queries see their own block and the one before, so the
blocks are rows of one batch with one small mask, and torch's fused kernel does the rest, gradients included.

Notable here: nothing of the size Q x K is made, no mask either. The blocks hold at most twice the pairs that the window lets
through.
"""

import torch

# Shorter windows share blocks of this many tokens, so that the kernel has enough to do.
SMALLEST_BLOCK = 64


def window_mask(queries, keys, window):
    """Boolean [len(queries), len(keys)] of absolute places: true where a query sees a key, itself and window - 1 before it."""
    distance = queries.unsqueeze(1) - keys.unsqueeze(0)
    return (distance >= 0) & (distance < window)


def pays(q_len, window):
    """Whether blocks leave out enough of Q x K to be worth cutting."""
    return q_len > 2 * max(window, SMALLEST_BLOCK)


def windowed_attention(kernel, query, key, value, window):
    """Output [B, heads, Q, Dv] of queries [B, heads, Q, D] over keys [B, kv_heads, Q, D] and values of the same tokens.

    Args:
        kernel: (query, key, value, mask or None, causal) -> output, the fused attention.
        window: visible tokens of each query, itself included.
    """
    length, rows = query.shape[2], max(window, SMALLEST_BLOCK)
    blocks = -(-length // rows)
    query, key, value = (_cut(states, blocks, rows) for states in (query, key, value))
    index = torch.arange(2 * rows, device=query.device)
    first_mask = None if rows == window else window_mask(index[:rows], index[:rows], window)
    first = kernel(query[:, 0], key[:, 0], value[:, 0], first_mask, first_mask is None)
    pairs = (torch.cat((states[:, :-1], states[:, 1:]), dim=3).flatten(0, 1) for states in (key, value))
    rest = kernel(query[:, 1:].flatten(0, 1), *pairs, window_mask(index[rows:], index, window), False)
    rest = rest.unflatten(0, (query.shape[0], blocks - 1))
    return torch.cat((first.unsqueeze(1), rest), dim=1).transpose(1, 2).flatten(2, 3)[:, :, :length]


def _cut(states, blocks, rows):
    """[B, heads, T, D] -> [B, blocks, heads, rows, D]; behind the last token come zeros, which no earlier query sees."""
    padded = torch.nn.functional.pad(states, (0, 0, 0, blocks * rows - states.shape[2]))
    return padded.unflatten(2, (blocks, rows)).transpose(1, 2)
