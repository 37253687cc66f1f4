"""What quantization cost each Linear: the error of its weights, and of what it puts out on real text.

    plain       ||Wq - W||_F / ||W||_F, and the same as a signal-to-noise ratio, -20 log10 of it in dB
    weighted    E ||(Wq - W) x||^2 / E ||W x||^2 over the inputs x of the full-precision layer on calibration text

Notable here: AWQ moves scales from norms and projections into the columns behind them, so that its matrices are in another
basis (Lin et al. 2023, arXiv:2306.00978 §3.2); they are brought back first, exactly where a norm says the scale, by least
squares where only two quantized matrices share it. One layer of the source is in float32 at a time.
"""

import json
import math
from pathlib import Path

import torch

from ..modeling.packed_linear import PackedLinear
from .bits_and_bytes import SCHEMES, load_in_bitsandbytes, packed_kinds
from .calibration import pack_calibration
from .checkpoint import load_full_precision
from .layerwise import build_layer, open_stream, shell_of
from .sites import layer_sites, quantizable_linears
from .stacks import stacks_of
from .statistics import InputStatistics, squared_error
from .writer import REPORT_NAME

# The least estimated scale that is told from rounding noise: below it a pair of matrices was not smoothed.
_NOISE = 0.02


def quantization_quality(source, quantized, ids=None, *, length=512, batch_size=4, progress=None):
    """Errors of every quantized Linear of a checkpoint against its source.

    Args:
        source: folder or Hub id of the checkpoint in full precision, of the family or of a native type that converts.
        quantized: folder or Hub id of the quantized one (AWQ, `--method int8` or bitsandbytes), or a scheme of bitsandbytes
            (`nf4`, `nf4-double`, `int8`) that is applied to the source while it is loaded.
        ids: token ids, [rows, tokens] or a list of lists, on which inputs are taken; None gives plain errors alone.
        length: tokens per window of `ids`. batch_size: windows per forward pass.
        progress: called with (done, layers).

    Returns:
        dict of JSON types: `linears` ({"name", "layer", "kind", "error", "snr_db", "weighted_error", "weighted_snr_db",
        "scales"}), `layers` (the same over the Linears of each), `overall`, `left_dense` (names of Linears that were not
        quantized), `method`, `tokens`. Weighted values are None without ids, and for experts that no token reached.

    Raises:
        ValueError: for a source that is quantized, a folder that holds no quantized Linear or cannot be loaded whole, or
            layers that do not match, naming them.
    """
    method = _method_of(quantized)
    model = load_full_precision(source)
    if model.config.sub_configs:
        raise ValueError(
            f"model_type={model.config.model_type!r} is made of {sorted(model.config.sub_configs)}; errors are told of models "
            "of one stack: choose a decoder"
        )
    packed = _load_quantized(source, quantized, method)
    names = {name: module for name, module in packed.named_modules() if isinstance(module, packed_kinds())}
    if not names:
        raise ValueError(
            f"{str(quantized)!r} holds no quantized Linear; give an AWQ, int8 or bitsandbytes checkpoint as the second"
        )
    shell = shell_of(model, {"quant_method": "awq"})
    [stack] = stacks_of(shell)
    windows = None if ids is None else _windows(ids, length, model.config)
    stream = None if windows is None else open_stream(shell, [{"input_ids": part} for part in windows.split(batch_size)])
    report = _report_of(quantized)
    linears, dense = [], []
    plans = model.config.layer_plan()
    known = set()
    for name, plan in stack.names():
        layer = build_layer(shell, model, stack, plan)
        targets = quantizable_linears(name, layer)
        known |= set(targets)
        dense += [target for target in targets if target not in names]
        moments = {} if stream is None else _observe(name, layer, stream, plan.index, [t for t in targets if t in names])
        scales = _Scales(model.config, plan, name, layer, packed, method, report)
        for target in (target for target in targets if target in names):
            linears.append(_errors(target, plan.index, layer, name, names[target], scales, moments.get(target)))
        if progress is not None:
            progress(plan.index + 1, len(plans))
    _refuse_unmatched(names, known, quantized)
    return {
        "source": str(source),
        "quantized": str(quantized),
        "method": method,
        "tokens": 0 if windows is None else windows.numel(),
        "linears": [_public(entry) for entry in linears],
        "layers": [
            {"layer": index, **_together([entry for entry in linears if entry["layer"] == index])}
            for index in sorted({entry["layer"] for entry in linears})
        ],
        "overall": _together(linears),
        "left_dense": dense,
    }


def dense_weight(module):
    """The matrix [out, in] that a quantized Linear stands for, in float32."""
    if isinstance(module, PackedLinear):
        return module.dequantize(torch.float32)
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight

    return dequantize_bnb_weight(module.weight, getattr(module, "state", None)).float()


def _method_of(quantized):
    """What `quantized` was quantized by, read before any weights. Raises ValueError where it was not."""
    from transformers import AutoConfig

    if str(quantized) in SCHEMES:
        return str(quantized)
    try:
        config = AutoConfig.from_pretrained(quantized)
    except OSError as error:
        raise ValueError(
            f"no config found at {str(quantized)!r}: give a quantized folder, or one of {list(SCHEMES)}"
        ) from error
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        raise ValueError(f"{str(quantized)!r} is not quantized: its config has no quantization_config; give the source first")
    method = settings.get("quant_method") if isinstance(settings, dict) else settings.quant_method
    return str(getattr(method, "value", method))


def _load_quantized(source, quantized, method):
    """The quantized model. Raises ValueError where it is not all there."""
    from transformers import AutoModelForCausalLM

    if str(quantized) in SCHEMES:
        return load_in_bitsandbytes(source, str(quantized))
    try:
        return AutoModelForCausalLM.from_pretrained(quantized)
    except (OSError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{str(quantized)!r} ({method}) cannot be loaded whole: {reason}") from error


def _windows(ids, length, config):
    windows, _ = pack_calibration(ids, min(length, config.max_position_embeddings), config.vocab_size)
    return windows


def _report_of(quantized):
    """The report beside a checkpoint that this package wrote, or None."""
    file = Path(str(quantized)) / REPORT_NAME
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


@torch.no_grad()
def _observe(prefix, layer, stream, index, targets):
    """{name: `InputStatistics`} of the inputs of `targets`; the stream moves on behind the layer."""
    found, handles = {}, []
    for target in targets:
        module = layer.get_submodule(target.removeprefix(f"{prefix}."))
        found[target] = InputStatistics(module.in_features, module.weight.device)
        handles.append(module.register_forward_pre_hook(lambda _, args, kept=found[target]: kept.add(args[0])))
    try:
        stream.advance(layer, index)
    finally:
        for handle in handles:
            handle.remove()
    for target, statistics in found.items():
        if not statistics.is_finite():
            raise ValueError(f"the calibration text gives NaN or infinite inputs to {target}; the source overflows there")
    return found


class _Scales:
    """The scales that AWQ moved within one layer: by which rows were divided and columns multiplied, per Linear."""

    def __init__(self, config, plan, prefix, layer, packed, method, report):
        self.rows, self.columns, self.how = {}, {}, {}
        if method != "awq" or (report is not None and report["method"] == "rtn"):
            return
        self.prefix, self.layer, self.packed = prefix, layer, packed
        sites = layer_sites(config, plan, prefix, layer).sites
        for site in sorted(sites, key=lambda site: site.kind != "norm"):
            scales, how = self._of_norm(site) if site.kind == "norm" else self._of_rows(site)
            if scales is None:
                continue
            if site.kind != "norm":
                self.rows[site.source] = scales
                self.how.setdefault(site.source, how)
            for name in (name for group in site.readers for name in group):
                self.columns[name], self.how[name] = site.expand(scales), how

    def restored(self, name, weight):
        """A quantized matrix in the basis of the source."""
        if name in self.columns:
            weight = weight / self.columns[name]
        return weight * self.rows[name].unsqueeze(1) if name in self.rows else weight

    def _of_norm(self, site):
        before = self.layer.get_submodule(site.source.removeprefix(f"{self.prefix}."))
        after = self.packed.get_submodule(site.source)
        offset = 1.0 if getattr(before, "unit_offset", False) else 0.0
        scales = (before.weight.float() + offset) / (after.weight.float() + offset)
        scales = torch.where(torch.isfinite(scales) & (scales > 0), scales, 1.0)
        return (None, "none") if bool((scales == 1).all()) else (scales, "exact")

    def _of_rows(self, site):
        """By least squares over each row of the source: W = s Wq, once the columns of both are of one basis."""
        weight = self.layer.get_submodule(site.source.removeprefix(f"{self.prefix}.")).weight.float()
        module = self.packed.get_submodule(site.source)
        found = dense_weight(module) if isinstance(module, packed_kinds()) else module.weight.float()
        found = found / self.columns[site.source] if site.source in self.columns else found
        scales = (found * weight).sum(1) / found.square().sum(1).clamp(min=1e-30)
        scales = torch.where(torch.isfinite(scales) & (scales > 0), scales, 1.0).detach()
        return (None, "none") if float((scales - 1).abs().median()) < _NOISE else (scales, "estimated")


@torch.no_grad()
def _errors(target, index, layer, prefix, module, scales, statistics):
    weight = layer.get_submodule(target.removeprefix(f"{prefix}.")).weight.float()
    found = dense_weight(module).to(weight.device)
    if found.shape != weight.shape:
        raise ValueError(f"{target} is {list(found.shape)} in the quantized checkpoint and {list(weight.shape)} in the source")
    difference = scales.restored(target, found) - weight
    sums = {"noise": float(difference.square().sum()), "signal": float(weight.square().sum())}
    if statistics is not None and statistics.tokens:
        gram = statistics.gram
        sums |= {
            "weighted_noise": float(squared_error(difference, gram)),
            "weighted_signal": float(squared_error(weight, gram)),
        }
    kind = ".".join(("experts", target.rpartition(".")[2])) if ".experts." in target else target.rpartition(".")[2]
    return {"name": target, "layer": index, "kind": kind, "scales": scales.how.get(target, "none"), **sums}


def _together(entries):
    """Errors over several Linears: sums of the squared ones beside the sums of what they are errors of."""
    plain = _ratio(sum(entry["noise"] for entry in entries), sum(entry["signal"] for entry in entries))
    reached = [entry for entry in entries if "weighted_noise" in entry]
    weighted = None
    if reached:
        weighted = _ratio(*(sum(entry[f"weighted_{part}"] for entry in reached) for part in ("noise", "signal")))
    return {
        "error": math.sqrt(plain),
        "snr_db": _decibels(plain),
        "weighted_error": weighted,
        "weighted_snr_db": None if weighted is None else _decibels(weighted),
    }


def _public(entry):
    kept = {key: entry[key] for key in ("name", "layer", "kind", "scales")}
    return {**kept, **_together([entry])}


def _ratio(noise, signal):
    return noise / signal if signal > 0 else float(noise > 0)


def _decibels(ratio):
    return -10 * math.log10(ratio) if ratio > 0 else None


def _refuse_unmatched(names, known, quantized):
    odd = sorted(set(names) - known)
    if odd:
        more = " and more" if len(odd) > 4 else ""
        raise ValueError(
            f"{str(quantized)!r} has quantized Linears that the source has not: {odd[:4]}{more} ({len(odd)} of {len(names)}); "
            "give the checkpoint that it was made from"
        )
