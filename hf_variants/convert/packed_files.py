"""Packed weights as a source, unpacked matrix by matrix: the two formats of the family, 4-bit AWQ `gemm` and 8-bit
`pack-quantized`, in checkpoints of the family and of native types.

Notable here: a matrix is what the layer that reads the format says it is (`AwqLinear`, `Int8Linear`), so that results are
those of loading the model, in every bit, and no more of it lies in memory than what is asked for; routed experts that a
quantized model of the family keeps apart are fused as they are in a dense one, layer by layer.
"""

import re

import torch

from hf_variants.convert.stages import Stage, Step
from hf_variants.modeling.awq_linear import AwqLinear
from hf_variants.modeling.int8_linear import Int8Linear
from hf_variants.modeling.int8_loading import PackedInt8Config, reads

_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.(weight|bias)")


def packed_format(settings):
    """(class of the layers, inputs per scale) of a `quantization_config`, or None where it is no format read here."""
    settings = settings if isinstance(settings, dict) else settings.to_dict()
    wanted = {"quant_method": "awq", "bits": 4, "zero_point": True}
    if all(settings.get(key) == value for key, value in wanted.items()):
        version = settings.get("version", settings.get("format", "gemm"))
        return (AwqLinear, settings["group_size"]) if version == "gemm" else None
    if settings.get("quant_method") == "compressed-tensors" and reads(settings):
        return Int8Linear, PackedInt8Config.from_dict(settings).group_size
    return None


def unpacked_tensors(files, layer, group, dtype, is_ours):
    """`files` (LazyTensors) with dense matrices in `dtype` in place of packed ones.

    Args:
        layer, group: as `packed_format` gives them.
        is_ours: whether the model is one of the family, whose experts are fused when they are dense.

    Raises:
        ValueError: parts of a matrix are missing, or have shapes that do not fit each other.
    """
    marker, *others = [name for name, _ in layer(8, 8, -1, device="meta").named_buffers()]
    steps, taken = [], set()
    for name in files:
        if not name.endswith(f".{marker}"):
            continue
        prefix = name.removesuffix(marker)
        sources = (name, *(f"{prefix}{other}" for other in others))
        absent = [source for source in sources if source not in files]
        if absent:
            raise ValueError(f"{absent} are missing beside {name}, which means nothing without them; fetch the files again")
        steps.append(Step(sources, _unpacking(layer, group, dtype, sources, f"{prefix}weight")))
        taken |= {*sources}
    dense = Stage([*steps, *(_kept(name) for name in files if name not in taken)], files)
    experts = expert_steps(dense) if is_ours else []
    fused = {source for step in experts for source in step.sources}
    return Stage([*experts, *(_kept(name) for name in dense if name not in fused)], dense) if experts else dense


def expert_steps(names):
    """Steps that fuse routed experts which were quantized one by one, as a dense model of the family has them."""
    experts = {}
    for name in names:
        if found := _EXPERT.fullmatch(name):
            prefix, index, part, kind = found.groups()
            experts.setdefault((prefix, kind), {}).setdefault(part, {})[int(index)] = name
    steps = []
    for (prefix, kind), parts in experts.items():
        suffix = "" if kind == "weight" else "_bias"
        gated = [parts.pop("gate_proj"), parts.pop("up_proj")] if "gate_proj" in parts else []
        for fused, together in [("gate_up_proj", gated), *((part, [names]) for part, names in parts.items())]:
            if together:
                steps.append(_fusing(f"{prefix}.{fused}{suffix}", [_in_order(part) for part in together]))
    return steps


def _in_order(names):
    return [names[index] for index in sorted(names)]


def _fusing(target, together):
    """The step from the tensors of each part, one per expert, to [experts, rows of all parts, ...]."""

    def compute(tensors):
        stacked = [torch.stack([tensors[name] for name in names]) for names in together]
        return {target: torch.cat(stacked, dim=1) if len(stacked) > 1 else stacked[0]}

    return Step(tuple(name for names in together for name in names), compute)


def _kept(name):
    return Step((name,), lambda tensors: {name: tensors[name]}, renames=True)


def _unpacking(layer, group, dtype, sources, target):
    def compute(tensors):
        words = tensors[sources[0]]
        inputs, outputs = _shape(layer, words)
        try:
            empty = layer(inputs, outputs, group, device="meta", dtype=dtype)
        except ValueError as error:
            raise ValueError(f"{sources[0]} of shape {list(words.shape)} holds no matrix of this format: {error}") from error
        for source, (name, buffer) in zip(sources, list(empty.named_buffers()), strict=True):
            if tensors[source].shape != buffer.shape:
                raise ValueError(
                    f"{source} has shape {list(tensors[source].shape)} instead of the {list(buffer.shape)} that go with "
                    f"{sources[0]} of shape {list(words.shape)} and group_size={group}"
                )
            setattr(empty, name, tensors[source])
        if words.device.type == "meta":
            return {target: torch.empty(outputs, inputs, dtype=dtype, device="meta")}
        return {target: empty.dequantize(dtype).contiguous()}

    return compute


def _shape(layer, words):
    """(inputs, outputs) of the matrix that packed words hold."""
    if layer is AwqLinear:
        return words.shape[0], words.shape[1] * 8
    return words.shape[1] * 4, words.shape[0]
