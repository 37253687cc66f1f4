"""A float32 working copy of a model with one Linear per expert matrix, equal in function.

Notable here: 4-bit layouts know matrices only, so experts that live in one three-dimensional tensor are taken apart
(and would be left dense, silently, otherwise); the family builds them apart by itself when the config carries a
`quantization_config`.
"""

import copy
import re

import torch

from ..modeling.expert_loading import FUSED_PARTS
from .checks import check_not_quantized

_FUSED = re.compile(rf"(.*\.experts)\.({'|'.join(FUSED_PARTS)})(_bias)?$")


def unfused_state_dict(state_dict):
    """Fused expert tensors renamed and split: `experts.gate_up_proj` [E, 2I, H] -> `experts.N.gate_proj.weight`, `up_proj`."""
    result = {}
    for name, tensor in state_dict.items():
        match = _FUSED.fullmatch(name)
        if match is None:
            result[name] = tensor
            continue
        prefix, matrix, bias = match.groups()
        for index, expert in enumerate(tensor):
            parts = FUSED_PARTS[matrix]
            for part, value in zip(parts, expert.chunk(len(parts)), strict=True):
                result[f"{prefix}.{index}.{part}.{'bias' if bias else 'weight'}"] = value
    return result


def working_copy(model, quantization_config):
    """A copy of `model` in float32 and eval mode whose config carries `quantization_config`, experts apart.

    Raises:
        ValueError: when the model is quantised already.
    """
    check_not_quantized(model)
    config = copy.deepcopy(model.config)
    config.quantization_config = dict(quantization_config)
    result = type(model)(config).float()
    with torch.no_grad():
        result.load_state_dict(unfused_state_dict(model.state_dict()), strict=True)
    result.generation_config = copy.deepcopy(getattr(model, "generation_config", None))
    return result.eval().requires_grad_(False)
