"""Activation-aware weight quantisation (Lin et al. 2023, arXiv:2306.00978), and rounding to nearest beside it.

Notable here: layer by layer, the inputs of every Linear are summed up, each site's scales are searched and folded,
ranges are clipped, weights are coded; the next layer then sees what the full-precision layer put out. The model given
is left untouched.
"""

import logging

import torch

from .calibration import DEFAULT_LENGTH, pack_calibration
from .checks import check_finite_weights, check_options, check_shapes, resolve_names
from .folding import apply_smoothing
from .replay import capture_calls, run_layer
from .result import QuantizationReport, QuantizedModel, storage_dtypes
from .rounding import quantize_groups
from .search import candidate_scales, relative_magnitude, search_clip, search_scales
from .sites import layer_sites, quantizable_linears
from .statistics import InputStatistics
from .unfuse import working_copy

logger = logging.getLogger(__name__)

# Below this many tokens the statistics of an expert say more about the sample than about the expert.
MIN_EXPERT_TOKENS = 32
# Queries and keys meet in a softmax, where a clipped outlier costs far more than its squared error says (AutoAWQ leaves
# them alone too).
_NEVER_CLIPPED = ("q_proj", "k_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
_FP16_MAX = 65504.0


def quantize_awq(
    model,
    calibration_ids,
    *,
    bits=4,
    group_size=64,
    clip=True,
    leave_unquantized=(),
    calibration_length=DEFAULT_LENGTH,
    batch_size=4,
    min_expert_tokens=MIN_EXPERT_TOKENS,
    dtype=None,
    progress=None,
):
    """Quantise the layers of a model of the family to 4 bits, activation-aware.

    Args:
        model: a VariantsFor... model in full precision, left as it is.
        calibration_ids: token ids, [rows, tokens] or a list of lists of any lengths; packed into windows.
        bits: 4, the only width of the format.
        group_size: inputs per scale, one of `GROUP_SIZES`; -1 is one group per output.
        clip: whether group ranges are searched as well as scales (queries and keys are never clipped).
        leave_unquantized: full names or `fnmatch` patterns of Linears to keep dense.
        calibration_length: tokens per window. batch_size: windows per forward.
        min_expert_tokens: a routed expert that sees fewer is rounded to nearest and named in the report.
        dtype: storage dtype of what stays dense; None keeps half precision and stores float32 as bfloat16.
        progress: called as progress(done, total, name) after each layer.

    Returns:
        QuantizedModel.

    Raises:
        ValueError: for a width, group size or shape the format cannot hold (naming the modules), for tokens outside the
            vocabulary, or for values that are not finite (naming the layer).
    """
    working, names, result = _prepare(model, "awq", bits, group_size, leave_unquantized, dtype)
    limit = model.config.max_position_embeddings
    windows, dropped = pack_calibration(calibration_ids, min(calibration_length, limit), model.config.vocab_size)
    rows, length = windows.shape
    result.report.calibration = {"windows": rows, "window_tokens": length, "tokens": rows * length, "dropped_tokens": dropped}
    prefix, layers = decoder_layers(working)
    hidden, calls = capture_calls(working, layers, windows.split(batch_size))
    options = {"clip": clip, "min_expert_tokens": min_expert_tokens}
    for plan, layer, layer_calls in zip(model.config.layer_plan(), layers, calls, strict=True):
        name = f"{prefix}.{plan.index}"
        sites = layer_sites(model.config, plan, name, layer, keep=frozenset(result.report.unquantized_modules))
        hidden = _quantize_layer(result, name, layer, sites, hidden, layer_calls, **options)
        if progress is not None:
            progress(plan.index + 1, len(layers), name)
    return _finish(result, names)


def quantize_rtn(model, *, bits=4, group_size=64, leave_unquantized=(), dtype=None, progress=None):
    """Quantise every weight to the nearest code, without calibration; arguments, result and errors as of `quantize_awq`."""
    working, names, result = _prepare(model, "rtn", bits, group_size, leave_unquantized, dtype)
    prefix, layers = decoder_layers(working)
    for index in range(len(layers)):
        linears = [name for name in names if name.startswith(f"{prefix}.{index}.")]
        for name in linears:
            _round(result, name, None)
        _finish_layer(result, {"name": f"{prefix}.{index}", "sites": []}, linears)
        if progress is not None:
            progress(index + 1, len(layers), f"{prefix}.{index}")
    return _finish(result, names)


def decoder_layers(model):
    """(full name, ModuleList) of the stack of layers."""
    base = model.base_model
    prefix = "layers" if base is model else f"{model.base_model_prefix}.layers"
    return prefix, base.layers


def _prepare(model, method, bits, group_size, leave_unquantized, dtype):
    check_options(bits, group_size)
    config = {"quant_method": "awq", "bits": bits, "group_size": group_size, "zero_point": True, "version": "gemm"}
    working = working_copy(model, {**config, "modules_to_not_convert": []})
    prefix, layers = decoder_layers(working)
    inside = [name for index, layer in enumerate(layers) for name in quantizable_linears(f"{prefix}.{index}", layer)]
    kept = resolve_names(leave_unquantized, inside)
    names = [name for name in inside if name not in kept]
    check_shapes(working, names, group_size)
    check_finite_weights(working, names)
    chosen = set(names)
    dense = [n for n, m in working.named_modules() if isinstance(m, torch.nn.Linear) and n not in chosen]
    # Routers that are no Linear are named too: other runtimes decide by name.
    dense += [n for n, m in working.named_modules() if n.endswith(".mlp.gate") and n not in dense]
    config["modules_to_not_convert"] = working.config.quantization_config["modules_to_not_convert"] = dense
    report = QuantizationReport(method, bits, group_size, unquantized_modules=dense)
    dtypes = storage_dtypes(model, dtype)
    # Experts taken apart have no entry of their own name in the source.
    default = next(iter(dtypes.values()))
    dtypes = {name: dtypes.get(name, default) for name, _ in working.named_parameters()}
    return working, names, QuantizedModel(working, {}, report, dtypes, config)


def _quantize_layer(result, name, layer, sites, hidden, calls, clip, min_expert_tokens):
    """Smooth, clip and code one layer; returns what it put out before."""
    working = result.model
    statistics, output, largest = _observe(working, name, layer, sites, hidden, calls)
    starved = _starved_experts(result.report, statistics, min_expert_tokens)
    smoothed = (_smooth(working, site, statistics, starved, result) for site in sites.sites)
    smoothed = [entry for entry in smoothed if entry is not None]
    result.report.skipped_sites.update({skip.name: skip.reason for skip in sites.skipped})
    for linear in sites.linears:
        _round(result, linear, statistics.get(linear) if clip and linear not in starved else None)
    error = _relative_error(run_layer(layer, hidden, calls), output)
    entry = {"name": name, "sites": smoothed, "output_error": error, "largest_output": largest}
    _finish_layer(result, entry, sites.linears)
    return output


@torch.no_grad()
def _observe(model, name, layer, sites, hidden, calls):
    """Statistics of every quantised Linear's input (one object per distinct input), the layer's output, its largest value."""
    groups = [group for site in sites.sites for group in site.readers]
    covered = {linear for group in groups for linear in group}
    groups += [(linear,) for linear in sites.linears if linear not in covered]
    statistics, handles = {}, []
    for group in groups:
        first = model.get_submodule(group[0])
        collected = InputStatistics(first.in_features)
        statistics.update(dict.fromkeys(group, collected))
        handles.append(first.register_forward_pre_hook(lambda module, args, collected=collected: collected.add(args[0])))
    try:
        output = run_layer(layer, hidden, calls)
    finally:
        for handle in handles:
            handle.remove()
    for linear, collected in statistics.items():
        if not collected.is_finite():
            raise ValueError(f"calibration gives NaN or infinite inputs to {linear}; the full-precision model overflows there")
    largest = max(float(states.abs().amax()) for states in output)
    if not largest < float("inf"):
        raise ValueError(f"calibration gives NaN or infinite outputs of {name}; the full-precision model overflows there")
    return statistics, output, largest


def _starved_experts(report, statistics, minimum):
    """Names of the Linears of routed experts with too few tokens; every expert's tokens are reported."""
    starved = set()
    for linear, collected in statistics.items():
        if ".experts." not in linear:
            continue
        expert = linear.rpartition(".")[0]
        report.tokens_per_expert[expert] = collected.tokens
        if collected.tokens < minimum:
            starved.add(linear)
            if expert not in report.starved_experts:
                report.starved_experts.append(expert)
    return starved


def _smooth(model, site, statistics, starved, result):
    """Search and fold the scales of one site; returns its entry in the report, or None where no token can decide."""
    group_size = result.report.group_size
    readers = [tuple(name for name in names if name not in starved) for names in site.readers]
    readers = [names for names in readers if names]
    if not readers:
        result.report.skipped_sites[site.name] = "fewer calibration tokens than min_expert_tokens"
        return None
    blocks, magnitudes, relative = [], 0, 0
    for names in readers:
        collected = statistics[names[0]]
        weight = torch.cat([model.get_submodule(name).weight for name in names])
        blocks.append((weight, collected.gram))
        magnitudes = magnitudes + collected.magnitude
        relative = relative + relative_magnitude(weight, _group(group_size, weight)) * weight.shape[0]
    magnitude = magnitudes / sum(statistics[names[0]].tokens for names in readers)
    relative = relative / sum(weight.shape[0] for weight, _ in blocks)
    candidates = candidate_scales(site.reduce_mean(magnitude), site.reduce_mean(relative))
    scales, loss, identity = search_scales(blocks, candidates, site.expand, _group(group_size, blocks[0][0]))
    applied = apply_smoothing(model, site, scales, result.dtypes[f"{site.source}.weight"])
    columns = site.expand(applied)
    for collected in {id(statistics[names[0]]): statistics[names[0]] for names in site.readers}.values():
        collected.rescale(columns)
    span = [float(applied.min()), float(applied.max())]
    return {"name": site.name, "loss": loss, "loss_unsmoothed": identity, "scales": span}


def _group(group_size, weight):
    return weight.shape[-1] if group_size == -1 else group_size


def _round(result, name, statistics):
    """Code one Linear and put the dequantised weight in its place; `statistics` are given where its ranges are clipped."""
    linear = result.model.get_submodule(name)
    group = _group(result.report.group_size, linear.weight)
    clipped = statistics is not None and statistics.tokens and name.rpartition(".")[2] not in _NEVER_CLIPPED
    low, high = search_clip(linear.weight, statistics.gram, group) if clipped else (None, None)
    codes = quantize_groups(linear.weight, group, low, high)
    if not torch.isfinite(codes.scales).all():
        raise ValueError(f"{name}: its largest weights need a scale beyond float16; name it in leave_unquantized")
    result.codes[name] = codes
    dense = codes.dequantize()
    error = (dense - linear.weight).square().sum() / linear.weight.square().sum().clamp(min=1e-30)
    linear.weight.copy_(dense)
    result.report.quantized_modules += 1
    result.report.quantized_parameters += dense.numel()
    result.weight_errors[name] = float(error)


def _finish_layer(result, entry, linears):
    entry["weight_errors"] = {name: result.weight_errors[name] for name in linears}
    result.report.layers.append(entry)


def _relative_error(outputs, references):
    wrong = sum((o - r).square().sum() for o, r in zip(outputs, references, strict=True))
    return float(wrong / sum(r.square().sum() for r in references))


def _finish(result, names):
    report = result.report
    fused = [n for n, p in result.model.named_parameters() if ".experts." in n and p.dim() == 3]
    if fused or report.quantized_modules != len(names):
        missing = fused or sorted(set(names) - set(result.codes))
        raise AssertionError(f"these matrices would stay dense silently: {missing[:5]}")
    if report.starved_experts:
        report.warnings.append(
            f"{len(report.starved_experts)} experts saw too few calibration tokens and were rounded to nearest"
        )
    overflowing = [entry["name"] for entry in report.layers if entry.get("largest_output", 0.0) > _FP16_MAX]
    if overflowing:
        report.warnings.append(f"outputs of {overflowing} exceed float16; load the checkpoint in bfloat16 or float32")
    for text in report.warnings:
        logger.warning(text)
    result.round_to_storage()
    return result
