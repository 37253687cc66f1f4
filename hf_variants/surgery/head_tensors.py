"""The weights of one attention layer, seen head by head.

Notable here: a bias is one more input column, so that every method treats it as part of the projection; what belongs to a
query head (its outputs, gate, sink and norm) is gathered beside it, so that heads can be put into another order exactly.
"""

from dataclasses import dataclass, replace

import torch


@dataclass
class Heads:
    """Double-precision copies of one layer's tensors.

    Attributes:
        query: [heads, D, in (+ 1)]; key, value: [kv heads, D, in (+ 1)].
        output: [heads, D, hidden]: what each channel of a head adds to the residual.
        query_extras, key_extras: tensors by parameter name whose first axis is the heads or the key-value heads.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    query_extras: dict
    key_extras: dict


def read_heads(attention):
    """`Heads` of a `VariantsAttention`."""
    config = attention.config
    heads, kv, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    output = attention.o_proj.weight.detach().double()
    query_extras, key_extras = {}, {}
    if attention.sinks is not None:
        query_extras["sinks"] = attention.sinks.detach().double()
    if attention.gate_proj is not None:
        query_extras["gate_proj.weight"] = attention.gate_proj.weight.detach().double().unflatten(0, (heads, -1))
    for name, count, extras in (("q_norm", heads, query_extras), ("k_norm", kv, key_extras)):
        if config.qk_norm in ("full", "per_head"):
            for key, parameter in getattr(attention, name).named_parameters():
                extras[f"{name}.{key}"] = parameter.detach().double().reshape(count, width)
    return Heads(
        _projection(attention.q_proj, heads),
        _projection(attention.k_proj, kv),
        _projection(attention.v_proj, kv),
        output.reshape(output.shape[0], heads, -1).permute(1, 2, 0),
        query_extras,
        key_extras,
    )


@torch.no_grad()
def write_heads(attention, heads):
    """Write `Heads` into a layer of the right shape."""
    for name, tensor in (("q_proj", heads.query), ("k_proj", heads.key), ("v_proj", heads.value)):
        projection = getattr(attention, name)
        flat = tensor.flatten(0, 1)
        projection.weight.copy_(flat[:, : projection.in_features])
        if projection.bias is not None:
            projection.bias.copy_(flat[:, -1])
    attention.o_proj.weight.copy_(heads.output.flatten(0, 1).T)
    parameters = dict(attention.named_parameters())
    for name, tensor in {**heads.query_extras, **heads.key_extras}.items():
        parameters[name].copy_(tensor.reshape(parameters[name].shape))


def reorder(heads, kv_order):
    """`Heads` with the key-value heads, and the query heads that read them, in another order: the layer computes the same."""
    order = torch.as_tensor(kv_order)
    group = len(heads.query) // len(heads.key)
    queries = (order[:, None] * group + torch.arange(group)).flatten()
    return Heads(
        heads.query[queries],
        heads.key[order],
        heads.value[order],
        heads.output[queries],
        {name: tensor[queries] for name, tensor in heads.query_extras.items()},
        {name: tensor[order] for name, tensor in heads.key_extras.items()},
    )


def weighed(heads, root):
    """`Heads` whose keys and values are measured by activations (`activations.py`); as they are where `root` is None."""
    if root is None:
        return heads
    root = root[: heads.key.shape[2], : heads.key.shape[2]]
    return replace(heads, key=heads.key @ root, value=heads.value @ root)


def unweighed(heads, root):
    """The inverse of `weighed`, for what a method made of its result."""
    if root is None:
        return heads
    root = root[: heads.key.shape[2], : heads.key.shape[2]]
    key, value = (torch.linalg.solve_triangular(root, tensor, upper=False, left=False) for tensor in (heads.key, heads.value))
    return replace(heads, key=key, value=value)


def _projection(linear, heads):
    weight = linear.weight.detach().double()
    if linear.bias is not None:
        weight = torch.cat((weight, linear.bias.detach().double()[:, None]), dim=1)
    return weight.unflatten(0, (heads, -1))
