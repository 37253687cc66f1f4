"""Which Linears should stay dense when the checkpoint may be larger than all in 4 bits: those that lose most per byte.

Notable here: what a Linear loses was measured, on the calibration tokens, as the squared error of its outputs beside the
energy of its layer's output; Linears that serving engines fuse (q, k and v; gate and up) stay dense together or not at all,
since the format has one group size and engines refuse mixed ones.
"""

from collections import defaultdict

_FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa"), "qkv_a"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up"),
}


def size_of(result):
    """Bytes of the tensors of a `QuantizedModel` as they will be stored."""
    dense = 0
    seen = set()
    for name, parameter in result.model.named_parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            dense += parameter.numel() * result.dtypes.get(name, parameter.dtype).itemsize
    packed = (buffer for name in result.names for buffer in result.model.get_submodule(name).buffers())
    return dense + sum(buffer.numel() * buffer.element_size() for buffer in packed)


def dense_within(result, max_bytes):
    """Full names of the Linears to leave dense, and an account.

    Args:
        result: QuantizedModel whose layers were quantised with calibration.
        max_bytes: what the weights may have in all.

    Raises:
        ValueError: when even all in 4 bits is larger.
    """
    size = size_of(result)
    if size > max_bytes:
        raise ValueError(
            f"max_bytes={max_bytes:,} cannot be met: everything in 4 bits with group_size={result.report.group_size} takes "
            f"{size:,} bytes; allow more, or choose a larger group_size"
        )
    units = _units(result)
    kept, account = [], []
    for share, cost, names in sorted(units, key=lambda unit: unit[0] / unit[1], reverse=True):
        if size + cost <= max_bytes:
            size += cost
            kept += names
            account.append({"modules": names, "error_share": share, "extra_bytes": cost})
    return kept, {"max_bytes": max_bytes, "bytes_expected": size, "left_dense": account}


def _units(result):
    """(error beside the layer's output, bytes that leaving it dense costs, names) of Linears that must go together."""
    units = defaultdict(list)
    for layer in result.report.layers:
        for name, error in layer.get("linear_errors", {}).items():
            parent, _, last = name.rpartition(".")
            units[parent, _FUSED.get(last, last)].append((name, error / max(layer["output_energy"], 1e-30)))
    found = []
    for members in units.values():
        cost = 0
        for name, _ in members:
            layer = result.model.get_submodule(name)
            packed = sum(buffer.numel() * buffer.element_size() for buffer in layer.buffers())
            cost += layer.in_features * layer.out_features * result.dtypes[f"{name}.weight"].itemsize - packed
        found.append((sum(error for _, error in members), cost, [name for name, _ in members]))
    return found
