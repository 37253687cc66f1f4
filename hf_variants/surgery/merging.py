"""Ways to make one key-value head of a group of them.

    mean   the average of the group (Ainslie et al. 2023, arXiv 2305.13245, 2.1)
    first  its first head
    svd    the best shared head when each query head may turn and stretch it: queries and outputs absorb the difference

Notable here: under RoPE only complex scalings of a rotary pair commute with the rotation, so keys are approximated pair by
pair with a complex matrix of rank one; values, and channels that RoPE does not turn, take any matrix. The approximation is
the best in the Frobenius norm (Eckart & Young 1936). `METHODS` is the contents.
"""

import torch


def by_mean(heads, groups, pairs):
    return _pooled(heads, groups, lambda tensor: tensor.mean(1))


def by_first(heads, groups, pairs):
    return _pooled(heads, groups, lambda tensor: tensor[:, 0])


def by_svd(heads, groups, pairs):
    """Shared heads of least squared error; queries and outputs of every head are turned to read them."""
    query = heads.query.clone()
    key = torch.empty_like(heads.key[:groups])
    seen_keys = torch.empty_like(heads.key)
    turned = set()
    for real, imaginary in pairs:
        both = torch.complex(heads.key[:, real], heads.key[:, imaginary])
        shared, factors = _rank_one(both.unflatten(0, (groups, -1)))
        key[:, real], key[:, imaginary] = shared.real, shared.imag
        approximation = factors.flatten()[:, None] * shared.repeat_interleave(factors.shape[1], 0)
        seen_keys[:, real], seen_keys[:, imaginary] = approximation.real, approximation.imag
        # <q, c k> = <conj(c) q, k>
        own = factors.flatten().conj().repeat_interleave(len(query) // len(heads.key))[:, None]
        changed = own * torch.complex(query[:, real], query[:, imaginary])
        query[:, real], query[:, imaginary] = changed.real, changed.imag
        turned |= {real, imaginary}
    rest = [channel for channel in range(key.shape[1]) if channel not in turned]
    if rest:
        shared, mixes = _shared_space(heads.key[:, rest], groups)
        key[:, rest] = shared
        seen_keys[:, rest] = mixes @ shared.repeat_interleave(len(mixes) // groups, 0)
        per_query = mixes.repeat_interleave(len(query) // len(mixes), 0)
        query[:, rest] = per_query.transpose(1, 2) @ query[:, rest]
    value, mixes = _shared_space(heads.value, groups)
    per_query = mixes.repeat_interleave(len(heads.output) // len(mixes), 0)
    seen_values = mixes @ value.repeat_interleave(len(mixes) // groups, 0)
    extras = {name: tensor.unflatten(0, (groups, -1)).mean(1) for name, tensor in heads.key_extras.items()}
    merged = type(heads)(query, key, value, per_query.transpose(1, 2) @ heads.output, heads.query_extras, extras)
    return merged, seen_keys, seen_values


# method -> (heads, number of groups, rotary pairs)
#        -> (heads with so many key-value heads, keys and values [old kv heads, D, in] that queries now see for their own)
METHODS = {"mean": by_mean, "first": by_first, "svd": by_svd}


def duplicated(heads, times):
    """Every key-value head `times` times: the layer computes the same."""
    extras = {name: tensor.repeat_interleave(times, 0) for name, tensor in heads.key_extras.items()}
    key, value = heads.key.repeat_interleave(times, 0), heads.value.repeat_interleave(times, 0)
    return type(heads)(heads.query, key, value, heads.output, heads.query_extras, extras)


def similar_order(heads, groups):
    """An order of the key-value heads in which those of one group are alike: greedily, by the cosine of keys and values."""
    flat = torch.cat([torch.nn.functional.normalize(t.flatten(1), dim=1) for t in (heads.key, heads.value)], dim=1)
    likeness = flat @ flat.T
    left, order = list(range(len(flat))), []
    while left:
        # the head with the least to choose from picks first
        first = min(left, key=lambda head: float(likeness[head, left].sum()))
        mates = sorted((head for head in left if head != first), key=lambda head: -float(likeness[first, head]))
        order += [first, *mates[: len(flat) // groups - 1]]
        left = [head for head in left if head not in order]
    return order


def _pooled(heads, groups, pool):
    def merge(tensor):
        return pool(tensor.unflatten(0, (groups, -1)))

    key, value, size = merge(heads.key), merge(heads.value), len(heads.key) // groups
    extras = {name: merge(tensor) for name, tensor in heads.key_extras.items()}
    merged = type(heads)(heads.query, key, value, heads.output, heads.query_extras, extras)
    return merged, key.repeat_interleave(size, 0), value.repeat_interleave(size, 0)


def _rank_one(rows):
    """[groups, size, in] complex -> shared [groups, in] and factors [groups, size] of mean square one."""
    left, scale, right = torch.linalg.svd(rows, full_matrices=False)
    root = rows.shape[1] ** 0.5
    return scale[:, :1] / root * right[:, 0], left[:, :, 0] * root


def _shared_space(rows, groups):
    """[kv heads, D, in] -> shared [groups, D, in] and mixes [kv heads, D, D] with mixes @ shared nearest to the rows."""
    size, width = len(rows) // groups, rows.shape[1]
    left, scale, right = torch.linalg.svd(rows.reshape(groups, size * width, -1), full_matrices=False)
    root = size**0.5
    shared, mixes = (
        torch.zeros(groups, width, rows.shape[2], dtype=rows.dtype),
        torch.zeros(groups, size * width, width, dtype=rows.dtype),
    )
    rank = min(width, scale.shape[1])
    shared[:, :rank] = scale[:, :rank, None] / root * right[:, :rank]
    mixes[:, :, :rank] = left[:, :, :rank] * root
    return shared, mixes.reshape(groups * size, width, width)
