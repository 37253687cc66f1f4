"""Normalisation layers: RMSNorm and LayerNorm with the switches that published models differ by.

Notable here: statistics are always fp32; what differs is when and how the weight multiplies, and that is chosen once, at
construction. The table `NORMS` is the contents.
"""

from functools import partial

import torch
from torch import nn
from transformers import initialization as init

from .memory_lean import RMSNormFunction
from .plain_linear import records_gradients


class VariantsRMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps), times a weight (Zhang & Sennrich 2019, arXiv:1910.07467).

    Args:
        dim: size of the last dimension.
        eps: added to the mean square.
        affine: whether there is a weight.
        unit_offset: the weight is stored minus one and multiplies in fp32 (Gemma).
        weight_in_fp32: the weight multiplies before the cast back to the input's dtype (OLMo 2), else after it (Llama).
    """

    def __init__(self, dim, eps=1e-6, affine=True, unit_offset=False, weight_in_fp32=False, bias=False):
        super().__init__()
        self.dim, self.eps, self.unit_offset = dim, eps, unit_offset
        self.weight = nn.Parameter(torch.zeros(dim) if unit_offset else torch.ones(dim)) if affine else None
        self.plain = partial(PLAIN_RMS_NORMS[(affine, unit_offset, weight_in_fp32)], eps)

    def forward(self, hidden_states):
        if records_gradients(hidden_states, self.weight):
            return RMSNormFunction.apply(hidden_states, self.weight, self.eps, float(self.unit_offset), self.plain)
        return self.plain(hidden_states, self.weight)

    def fill(self):
        if self.weight is not None:
            init.constant_(self.weight, 0.0 if self.unit_offset else 1.0)

    def extra_repr(self):
        return f"{self.dim}, eps={self.eps}, unit_offset={self.unit_offset}"


def _normalised(eps, x):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _scale_after_cast(eps, x, weight):
    if x.dtype == torch.float32:
        return nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
    return weight * _normalised(eps, x).to(x.dtype)


def _scale_before_cast(eps, x, weight):
    return (weight * _normalised(eps, x)).to(x.dtype)


def _scale_unit_offset(eps, x, weight):
    return (_normalised(eps, x) * (1.0 + weight.float())).to(x.dtype)


def _no_scale(eps, x, weight):
    return _normalised(eps, x).to(x.dtype)


# (affine, unit_offset, weight_in_fp32) -> the norm, and so how the weight multiplies
PLAIN_RMS_NORMS = {
    (True, False, False): _scale_after_cast,
    (True, False, True): _scale_before_cast,
    (True, True, False): _scale_unit_offset,
    (True, True, True): _scale_unit_offset,
    (False, False, False): _no_scale,
    (False, False, True): _no_scale,
    (False, True, False): _no_scale,
    (False, True, True): _no_scale,
}


class VariantsLayerNorm(nn.Module):
    """(x - mean) / sqrt(var + eps) * weight + bias (Ba et al. 2016, arXiv:1607.06450).

    Args:
        dim: size of the last dimension.
        eps: added to the variance.
        affine: whether there is a weight; False is the non-parametric LayerNorm of OLMo.
        bias: whether there is a bias.
        unit_offset: the weight is stored minus one (Nemotron's LayerNorm1P).
        weight_in_fp32: normalise and scale in fp32, then cast back (Cohere).
    """

    def __init__(self, dim, eps=1e-5, affine=True, unit_offset=False, weight_in_fp32=False, bias=True):
        super().__init__()
        self.dim, self.eps, self.unit_offset, self.weight_in_fp32 = dim, eps, unit_offset, weight_in_fp32
        self.weight = nn.Parameter(torch.zeros(dim) if unit_offset else torch.ones(dim)) if affine else None
        self.bias = nn.Parameter(torch.zeros(dim)) if affine and bias else None

    def forward(self, hidden_states):
        weight = self.weight + 1 if self.unit_offset else self.weight
        if not self.weight_in_fp32:
            return nn.functional.layer_norm(hidden_states, (self.dim,), weight, self.bias, self.eps)
        bias = None if self.bias is None else self.bias.float()
        out = nn.functional.layer_norm(hidden_states.float(), (self.dim,), weight.float(), bias, self.eps)
        return out.to(hidden_states.dtype)

    def fill(self):
        if self.weight is not None:
            init.constant_(self.weight, 0.0 if self.unit_offset else 1.0)
        if self.bias is not None:
            init.zeros_(self.bias)

    def extra_repr(self):
        return f"{self.dim}, eps={self.eps}, unit_offset={self.unit_offset}"


class PerHeadNorm(nn.Module):
    """The norm of `config` over each head of [B, heads, T, D], with a weight [heads, D]; all in fp32 (Cohere)."""

    def __init__(self, config, heads):
        super().__init__()
        self.unit_offset = config.norm_unit_offset
        self.norm = NORMS[config.norm_type](config.head_dim, eps=config.norm_eps, affine=False, bias=False)
        self.weight = nn.Parameter(torch.empty(heads, config.head_dim))
        self.fill()

    def forward(self, heads):
        weight = self.weight.float() + 1 if self.unit_offset else self.weight.float()
        return (weight.unsqueeze(1) * self.norm(heads.float())).to(heads.dtype)

    def fill(self):
        init.constant_(self.weight, 0.0 if self.unit_offset else 1.0)


def build_norm(config, dim, eps=None):
    """The norm that `config` names, over a last dimension of `dim`."""
    return NORMS[config.norm_type](
        dim,
        eps=config.norm_eps if eps is None else eps,
        affine=config.norm_affine,
        unit_offset=config.norm_unit_offset,
        weight_in_fp32=config.norm_weight_in_fp32,
        bias=config.norm_bias,
    )


NORMS = {"rmsnorm": VariantsRMSNorm, "layernorm": VariantsLayerNorm}
