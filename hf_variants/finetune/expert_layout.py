"""Fused experts of a model in memory <-> one `nn.Linear` per matrix, so that any adapter can reach them.

Notable here: weights are views' copies, never recomputed, so splitting and fusing give bitwise the same model back.
"""

import torch
from torch import nn

from ..modeling.expert_loading import FUSED_PARTS
from ..modeling.experts import FUSED_EXPERTS, VariantsLinearExperts


def split_experts(model):
    """Replace the fused experts of a model, in place, by Linears; returns the number of layers changed."""
    layers = _expert_layers(model, tuple(FUSED_EXPERTS.values()))
    for layer in layers:
        fused = layer.experts
        with torch.device("meta"):
            apart = VariantsLinearExperts(model.config)
        for name, parts, kind in _fused_parameters(fused):
            tensor = getattr(fused, name)
            for expert, rows in zip(apart, tensor.detach(), strict=True):
                for part, piece in zip(parts, rows.chunk(len(parts)), strict=True):
                    setattr(getattr(expert, part), kind, nn.Parameter(piece.clone(), tensor.requires_grad))
        layer.experts = apart.train(fused.training)
    return len(layers)


def fuse_experts(model):
    """Undo `split_experts`, in place, on a float model; returns the number of layers changed."""
    layers = _expert_layers(model, VariantsLinearExperts)
    config = model.config
    for layer in layers:
        apart = layer.experts
        with torch.device("meta"):
            fused = FUSED_EXPERTS[(config.mlp_type, config.expert_bias)](config)
        for name, parts, kind in list(_fused_parameters(fused)):
            rows = [torch.cat([getattr(getattr(expert, part), kind).detach() for part in parts]) for expert in apart]
            setattr(fused, name, nn.Parameter(torch.stack(rows)))
        layer.experts = fused.train(apart.training)
    return len(layers)


def _expert_layers(model, kinds):
    return [module for module in model.modules() if isinstance(getattr(module, "experts", None), kinds)]


def _fused_parameters(fused):
    """(name, parts, kind) of every parameter of fused experts."""
    for name, _ in fused.named_parameters():
        kind = "bias" if name.endswith("_bias") else "weight"
        yield name, FUSED_PARTS[name.removesuffix("_bias")], kind
