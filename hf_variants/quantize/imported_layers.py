"""Layers of an AutoAWQ folder of a native class, as the layers of a member of the family that `whole_model` adopts.

Notable here: codes, zero points and scales go through the family's own weight rules, as matrices of the weight's shape, and
must mean there exactly what the rules make of the dense weight; every tensor of the folder must have its place, and what
AutoAWQ leaves alone (embedding, last norm, head) must be bitwise the source's.
"""

import json
from pathlib import Path

import torch
from torch import nn

from ..modeling.awq_linear import AwqLinear
from ..modeling.group_codes import GroupCodes
from .layer_quantization import LayerResult
from .producers import ProducerFailed

_PARTS = ("codes", "zeros", "scales")
_TENSORS = ("qweight", "qzeros", "scales")


class ImportedLayers:
    """Finished layers that are read as a `LayerStore` is.

    Raises:
        ProducerFailed: for a folder of other settings, or one that is not whole; naming what is wrong.
    """

    def __init__(self, folder, model, native, group_size):
        from ..convert.heads import head_of_ours
        from ..convert.registry import find_family
        from ..convert.skeletons import expected_tensors
        from ..convert.weight_rules import apply_rules

        _check_settings(folder, group_size)
        wanted = expected_tensors(native)
        dense, packed = _tensors_of(folder, native, wanted, group_size)
        found = find_family(native.config.model_type)
        rules = found.rules(head_of_ours(type(model), found))
        self.state = apply_rules(rules, dense, model.config)
        views = [apply_rules(rules, _view(dense, packed, part), model.config) for part in _PARTS]
        self.codes = {}
        for name, scales in ((name, view) for name, view in views[2].items() if bool((view > 0).any())):
            self.codes[name.removesuffix(".weight")] = self._regrouped(
                name, views[0][name], views[1][name], scales, group_size
            )
        self._check_the_rest(model)

    def _regrouped(self, name, codes, zeros, scales, group):
        zeros, scales = (part[:, ::group].contiguous() for part in (zeros, scales))
        found = GroupCodes(codes.round().to(torch.uint8), zeros.round().to(torch.uint8), scales.half(), group)
        if not torch.equal(found.dequantize(), self.state[name].float()):
            raise ProducerFailed(f"the codes that AutoAWQ wrote for {name} cannot be kept in this family's layout")
        return found

    def _check_the_rest(self, model):
        prefix = f"{model.base_model_prefix}.layers."
        for name, tensor in model.state_dict().items():
            other = self.state.get(name)
            if other is not None and not name.startswith(prefix) and not torch.equal(tensor.float(), other.float()):
                raise ProducerFailed(f"AutoAWQ changed {name}, which lies outside of the layers")

    def check(self, linears):
        """Raise ProducerFailed where other Linears were coded than `linears` (full names)."""
        if wrong := sorted(set(linears) ^ set(self.codes)):
            raise ProducerFailed(f"AutoAWQ left dense, or coded, other matrices than those of the layers: {wrong[:6]}")

    def load(self, index, layer, name):
        """The `LayerResult` of the layer called `name`, whose weights go into the dense float32 `layer`."""
        prefix = f"{name}."
        state = {full.removeprefix(prefix): tensor for full, tensor in self.state.items() if full.startswith(prefix)}
        layer.load_state_dict({part: tensor.float() for part, tensor in state.items()}, strict=True)
        codes = {full: found for full, found in self.codes.items() if full.startswith(prefix)}
        return LayerResult(codes=codes, entry={"name": name, "sites": []})


def _check_settings(folder, group_size):
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise ProducerFailed("AutoAWQ wrote no config.json")
    told = json.loads(file.read_text(encoding="utf-8")).get("quantization_config") or {}
    asked = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}
    if wrong := {name: told.get(name) for name, value in asked.items() if told.get(name) != value}:
        raise ProducerFailed(f"AutoAWQ wrote {wrong}, but asked for were { {name: asked[name] for name in wrong} }")


def _tensors_of(folder, native, wanted, group_size):
    """({native name: dense tensor}, {name of a Linear: `GroupCodes`}) of the files; `wanted` are names and shapes."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    held = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        try:
            held.update(load_file(file))
        except SafetensorError as error:
            raise ProducerFailed(f"AutoAWQ's {file.name} cannot be read: {error}") from error
    packed = {name.removesuffix(".qweight") for name in held if name.endswith(".qweight")}
    given = {name for name in held if name.rpartition(".")[0] not in packed or name.endswith(".bias")}
    given |= {f"{name}.weight" for name in packed}
    absent = [f"{name}.{part}" for name in packed for part in _TENSORS if f"{name}.{part}" not in held]
    absent += sorted(set(wanted) - given)
    if absent or (surplus := sorted(given - set(wanted))):
        what = f"lacks {absent[:6]}" if absent else f"holds {surplus[:6]}, which the native class has not"
        raise ProducerFailed(f"what AutoAWQ wrote is not whole: it {what}")
    codes = {name: _codes(name, native.get_submodule(name), held, group_size) for name in packed}
    dense = {name: codes[name[:-7]].dequantize() if name[:-7] in packed else held[name] for name in wanted}
    if wrong := [name for name, tensor in dense.items() if tensor.shape != wanted[name].shape]:
        raise ProducerFailed(f"what AutoAWQ wrote has other shapes than the native class: {wrong[:6]}")
    if odd := [name for name, tensor in dense.items() if not bool(torch.isfinite(tensor.float()).all())]:
        raise ProducerFailed(f"what AutoAWQ wrote is not finite: {odd[:6]}")
    return dense, codes


def _codes(name, linear, held, group_size):
    words, zeros, scales = (held[f"{name}.{part}"] for part in _TENSORS)
    inputs, outputs = linear.in_features, linear.out_features
    shapes = [(inputs, outputs // 8), (inputs // group_size, outputs // 8), (inputs // group_size, outputs)]
    if not isinstance(linear, nn.Linear) or [tuple(t.shape) for t in (words, zeros, scales)] != shapes:
        raise ProducerFailed(f"what AutoAWQ wrote for {name} has other shapes than its Linear in groups of {group_size}")
    return AwqLinear.codes_of(words, zeros, scales.half(), group_size)


def _view(dense, packed, part):
    """The dense tensors with one part of the codes, as a matrix of the weight's shape, in place of every coded weight."""
    view = {name: torch.zeros_like(tensor, dtype=torch.float32) for name, tensor in dense.items()}
    for name, found in packed.items():
        values = getattr(found, part).float()
        view[f"{name}.weight"] = values if part == "codes" else values.repeat_interleave(found.group, 1)
    return view
