"""One layer to 4 bits: what its Linears read is summed up, scales are searched and folded, ranges clipped, weights coded.

Notable here: the layer sees what the layers before it put out AFTER they were quantised, so that each one makes up for the
errors before it as far as its inputs show them; experts with too few tokens are rounded to nearest and named.
"""

from dataclasses import dataclass, field

import torch

from .compensation import compensated_codes
from .folding import apply_smoothing
from .formats import FORMATS
from .rounding import quantize_groups
from .search import candidate_scales, relative_magnitude, search_clip, search_scales
from .statistics import InputStatistics, squared_error

# Queries and keys meet in a softmax, where a clipped outlier costs far more than its squared error says (AutoAWQ leaves
# them alone too).
_NEVER_CLIPPED = ("q_proj", "k_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")


@dataclass(frozen=True)
class Settings:
    """How layers are quantised; the fields are the arguments of `quantize_awq`."""

    bits: int = 4
    group_size: int = 64
    symmetric: bool = False
    clip: bool = True
    compensate: bool = True
    min_expert_tokens: int = 32

    @property
    def format(self):
        """The `Format` that these codes are written in."""
        return FORMATS[self.bits]

    def group_of(self, weight):
        """Inputs per scale of a matrix [out, in]."""
        return weight.shape[-1] if self.group_size == -1 else self.group_size


@dataclass
class LayerResult:
    """What became of one layer: `codes` by full name, `entry` for the report, and what the report collects over layers."""

    codes: dict = field(default_factory=dict)
    entry: dict = field(default_factory=dict)
    skipped: dict = field(default_factory=dict)
    tokens: dict = field(default_factory=dict)
    starved: list = field(default_factory=list)


class _Parts:
    """Modules of a layer by their full names."""

    def __init__(self, prefix, layer):
        self.prefix, self.layer = prefix, layer

    def get_submodule(self, name):
        return self.layer.get_submodule(name.removeprefix(f"{self.prefix}."))


def nearest_layer(prefix, layer, linears, settings):
    """Round the Linears of `layer` called `linears` to nearest codes, in place; returns the `LayerResult`."""
    result, parts = LayerResult(), _Parts(prefix, layer)
    errors = {name: _code(result, parts, name, settings, None) for name in linears}
    result.entry = {"name": prefix, "sites": [], "weight_errors": {name: error["weight"] for name, error in errors.items()}}
    return result


def aware_layer(prefix, layer, sites, stream, index, settings, dtypes):
    """Smooth, clip and code `layer`, in place, for the hidden states of `stream`.

    Args:
        sites: the layer's `LayerSites`.
        dtypes: storage dtype of each parameter, by full name.

    Returns:
        (LayerResult, outputs of the layer before it was quantised, one per batch).

    Raises:
        ValueError: naming the module, for values that are not finite.
    """
    result, parts = LayerResult(), _Parts(prefix, layer)
    statistics, output, largest = _observe(parts, sites, stream, index)
    starved = _starved_experts(result, statistics, settings.min_expert_tokens)
    smoothed = [_smooth(result, parts, site, statistics, starved, settings, dtypes) for site in sites.sites]
    result.skipped.update({skip.name: skip.reason for skip in sites.skipped})
    energy = float(sum(states.square().sum() for states in output))
    errors = {}
    for name in sites.linears:
        errors[name] = _code(result, parts, name, settings, None if name in starved else statistics[name])
    result.entry = {
        "name": prefix,
        "sites": [entry for entry in smoothed if entry is not None],
        "largest_output": largest,
        "output_energy": energy,
        "weight_errors": {name: error["weight"] for name, error in errors.items()},
        "linear_errors": {name: error["output"] for name, error in errors.items() if "output" in error},
    }
    return result, output


@torch.no_grad()
def _observe(parts, sites, stream, index):
    """Statistics of every quantised Linear's input (one object per distinct input), the layer's output, its largest value."""
    groups = [group for site in sites.sites for group in site.readers]
    covered = {linear for group in groups for linear in group}
    groups += [(linear,) for linear in sites.linears if linear not in covered]
    statistics, handles = {}, []
    for group in groups:
        first = parts.get_submodule(group[0])
        collected = InputStatistics(first.in_features, first.weight.device)
        statistics.update(dict.fromkeys(group, collected))
        handles.append(first.register_forward_pre_hook(lambda module, args, collected=collected: collected.add(args[0])))
    try:
        output = stream.through(parts.layer, index)
    finally:
        for handle in handles:
            handle.remove()
    for linear, collected in statistics.items():
        if not collected.is_finite():
            raise ValueError(f"calibration gives NaN or infinite inputs to {linear}; the full-precision model overflows there")
    largest = max(float(states.abs().amax()) for states in output)
    if not largest < float("inf"):
        raise ValueError(
            f"calibration gives NaN or infinite outputs of {parts.prefix}; the full-precision model overflows there"
        )
    return statistics, output, largest


def _starved_experts(result, statistics, minimum):
    """Names of the Linears of routed experts with too few tokens; every expert's tokens are reported."""
    starved = set()
    for linear, collected in statistics.items():
        if ".experts." not in linear:
            continue
        expert = linear.rpartition(".")[0]
        result.tokens[expert] = collected.tokens
        if collected.tokens < minimum:
            starved.add(linear)
            if expert not in result.starved:
                result.starved.append(expert)
    return starved


def _smooth(result, parts, site, statistics, starved, settings, dtypes):
    """Search and fold the scales of one site; returns its entry in the report, or None where no token can decide."""
    readers = [tuple(name for name in names if name not in starved) for names in site.readers]
    readers = [names for names in readers if names]
    if not readers:
        result.skipped[site.name] = "fewer calibration tokens than min_expert_tokens"
        return None
    blocks, magnitudes, relative = [], 0, 0
    for names in readers:
        collected = statistics[names[0]]
        weight = torch.cat([parts.get_submodule(name).weight for name in names])
        blocks.append((weight, collected.gram))
        magnitudes = magnitudes + collected.magnitude
        relative = relative + relative_magnitude(weight, settings.group_of(weight)) * weight.shape[0]
    magnitude = magnitudes / sum(statistics[names[0]].tokens for names in readers)
    relative = relative / sum(weight.shape[0] for weight, _ in blocks)
    candidates = candidate_scales(site.reduce_mean(magnitude), site.reduce_mean(relative))
    group = settings.group_of(blocks[0][0])
    scales, loss, identity = search_scales(blocks, candidates, site.expand, group, settings.symmetric)
    applied = apply_smoothing(parts, site, scales, dtypes[f"{site.source}.weight"])
    columns = site.expand(applied)
    for collected in {id(statistics[names[0]]): statistics[names[0]] for names in site.readers}.values():
        collected.rescale(columns)
    span = [float(applied.min()), float(applied.max())]
    return {"name": site.name, "loss": loss, "loss_unsmoothed": identity, "scales": span}


@torch.no_grad()
def _code(result, parts, name, settings, statistics):
    """Code one Linear and put what the codes mean in its place; returns its errors, relative ("weight") and summed over the
    calibration tokens ("output")."""
    linear = parts.get_submodule(name)
    weight, group = linear.weight, settings.group_of(linear.weight)
    aware = statistics is not None and statistics.tokens
    gram = statistics.gram if aware else None
    low = high = None
    if aware and settings.clip and name.rpartition(".")[2] not in _NEVER_CLIPPED:
        low, high = search_clip(weight, gram, group, settings.symmetric)
    if aware and settings.compensate:
        codes = compensated_codes(weight, gram, group, low, high, symmetric=settings.symmetric)
    else:
        codes = quantize_groups(
            *(weight, group, low, high),
            top=settings.format.top,
            symmetric=settings.symmetric,
            scale_dtype=settings.format.scale_dtype,
        )
    if not torch.isfinite(codes.scales).all():
        raise ValueError(
            f"{name}: its largest weights need a scale beyond {settings.format.scale_dtype}; name it in leave_unquantized"
        )
    result.codes[name] = codes
    dense = codes.dequantize()
    difference = dense - weight
    errors = {"weight": float(difference.square().sum() / weight.square().sum().clamp(min=1e-30))}
    if gram is not None:
        errors["output"] = float(squared_error(difference, gram))
    weight.copy_(dense)
    return errors
