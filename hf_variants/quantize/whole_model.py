"""Activation-aware weight quantisation (Lin et al. 2023, arXiv:2306.00978), and rounding to nearest beside it.

Notable here: layer by layer, only one is in float32 at a time; a layer that is done is packed at once, and can be stored, so
that an interrupted run continues with the next; perplexities of the full, the rounded and the quantised model come from
hidden states that walk beside. The model given is left untouched, unless its layers may be let go.
"""

import copy
import logging

import torch
from torch import nn

from ..modeling.blocks import TOPOLOGIES
from .batches import IGNORED, calibration_batches, evaluation_batches, probe_batch, targets_of
from .checks import (
    check_finite_weights,
    check_not_quantized,
    check_predicts_next,
    check_shapes,
    check_some_left,
    in_storage,
    resolve_names,
)
from .comparison import compare
from .formats import width_of
from .layer_quantization import Settings, aware_layer, nearest_layer
from .layerwise import build_layer, in_float32, open_stream, outputs_of, shell_of
from .memory import give_back
from .result import QuantizationReport, QuantizedModel, storage_dtypes
from .sites import layer_sites, quantizable_linears
from .stacks import main_config, stacks_of

logger = logging.getLogger(__name__)

# Below this many tokens the statistics of an expert say more about the sample than about the expert.
MIN_EXPERT_TOKENS = 32
_FP16_MAX = 65504.0
# Share of a matrix's energy that codes miss where they say nothing of it; of 4-bit ones it is about 0.01.
_LOST = 0.5


def quantize_awq(
    model,
    calibration_ids,
    *,
    bits=4,
    group_size=64,
    symmetric=False,
    clip=True,
    compensate=True,
    leave_unquantized=(),
    calibration_length=None,
    batch_size=None,
    min_expert_tokens=MIN_EXPERT_TOKENS,
    dtype=None,
    eval_ids=None,
    store=None,
    release=False,
    progress=None,
):
    """Quantise the layers of a model of the family to 4 bits, activation-aware.

    Args:
        model: a VariantsFor... model in full precision, left as it is.
        calibration_ids: token ids, [rows, tokens] or a list of lists of any lengths, packed into windows; or batches, a list
            of dicts as the model takes them, which encoder-decoders need ({"input_ids", "labels" or "decoder_input_ids",
            "attention_mask" ...}) and vision-language models may have ({"input_ids", "pixel_values" ...}).
        bits: 4, the only width of the format.
        group_size: inputs per scale, one of `GROUP_SIZES`; -1 is one group per output.
        symmetric: zero stands in the middle of the codes (zero point 8 everywhere), in the same format.
        clip: whether group ranges are searched as well as scales (queries and keys are never clipped).
        compensate: whether rounding lets the weights that follow make up for the error of those before (GPTQ), else each
            weight is rounded to its nearest code.
        leave_unquantized: full names or `fnmatch` patterns of Linears to keep dense.
        calibration_length: tokens per window of token ids (None: 512). batch_size: windows per forward (None: 4).
        min_expert_tokens: a routed expert that sees fewer is rounded to nearest and named in the report.
        dtype: storage dtype of what stays dense; None keeps half precision and stores float32 as bfloat16.
        eval_ids: token ids [rows, tokens] or batches; when given, `report.perplexity` holds that of the full model, of
            rounding to nearest and of the result, in float32, on labels where batches have some.
        store: a `LayerStore` where finished layers are kept and found again; None keeps nothing.
        release: the source model's layers are dropped one by one as they are done, to save memory.
        progress: called as progress(done, total, name) after each layer.

    Returns:
        QuantizedModel.

    Raises:
        ValueError: for a width, group size or shape the format cannot hold (naming the modules), for tokens outside the
            vocabulary, for values that are not finite (naming the layer), or for eval_ids of which no token is scored.
    """
    settings = Settings(bits, group_size, symmetric, clip, compensate, min_expert_tokens)
    run = _Run(model, "awq", settings, leave_unquantized, dtype, eval_ids)
    batches, run.report.calibration = calibration_batches(model, calibration_ids, calibration_length, batch_size)
    run.open("calibration", batches)
    return run.finish(eval_ids, store, release, progress)


def quantize_rtn(
    model,
    *,
    bits=4,
    group_size=64,
    symmetric=False,
    leave_unquantized=(),
    dtype=None,
    eval_ids=None,
    store=None,
    release=False,
    progress=None,
):
    """Quantise every weight to the nearest code, without calibration; arguments, result and errors as of `quantize_awq`."""
    run = _Run(model, "rtn", Settings(bits, group_size, symmetric), leave_unquantized, dtype, eval_ids)
    return run.finish(eval_ids, store, release, progress)


def quantize_int8(
    model, *, bits=8, group_size=-1, leave_unquantized=(), dtype=None, eval_ids=None, store=None, release=False, progress=None
):
    """Quantise every weight to the nearest of 256 symmetric codes, with one scale per output or per group of inputs.

    The codes hold weights alone: activations stay as they are. Arguments, result and errors as of `quantize_awq`.
    """
    run = _Run(model, "int8", Settings(bits, group_size, symmetric=True), leave_unquantized, dtype, eval_ids)
    return run.finish(eval_ids, store, release, progress)


def adopt_layers(model, layers, *, group_size, calibration, eval_ids=None, dtype=None, progress=None):
    """The `QuantizedModel` of layers that another producer coded by AWQ.

    Args:
        model: a VariantsFor... model in full precision; its layers are let go one by one.
        layers: `ImportedLayers`.
        calibration: numbers for the report. eval_ids, dtype, progress: as in `quantize_awq`.
    """
    run = _Run(model, "awq", Settings(group_size=group_size), (), dtype, eval_ids)
    layers.check(run.linears)
    run.report.calibration = calibration
    return run.finish(eval_ids, layers, True, progress)


class _Run:
    """One model being quantised: the shell that gathers the packed layers, the streams, the report."""

    def __init__(self, model, method, settings, leave_unquantized, dtype, eval_ids=None):
        width_of(method, settings.bits, settings.group_size)
        check_not_quantized(model)
        check_predicts_next(main_config(model.config), eval_ids)
        self.model, self.method, self.settings = model, method, settings
        self.config = settings.format.settings(settings.group_size, ())
        self.shell = shell_of(model, self.config)
        self.stacks = stacks_of(self.shell)
        skeletons = self._skeletons()
        linears = [linear for name, layer in skeletons.items() for linear in quantizable_linears(name, layer)]
        self.kept = resolve_names(leave_unquantized, linears)
        self.linears = [name for name in linears if name not in self.kept]
        check_some_left(self.linears, self.kept)
        shapes = {f"{name}.{part}": m for name, layer in skeletons.items() for part, m in layer.named_modules()}
        check_shapes({name: shapes[name] for name in self.linears}, settings.group_size, settings.format)
        check_finite_weights(model)
        dense = self._dense(shapes)
        self.config.update(settings.format.settings(settings.group_size, dense))
        self.report = QuantizationReport(
            method,
            settings.bits,
            settings.group_size,
            symmetric=settings.symmetric,
            unquantized_modules=dense,
        )
        self.dtypes = self._storage_dtypes(skeletons, dtype)
        for name, parameter in self.shell.named_parameters():
            parameter.data = in_storage(name, parameter.data, self.dtypes[name])
        self.streams = {}
        self.open("probe", [probe_batch(model)])

    def open(self, name, batches):
        self.streams[name] = open_stream(self.shell, batches)

    def finish(self, eval_ids, store, release, progress):
        """Walk through the layers and return the `QuantizedModel`."""
        if eval_ids is not None:
            self.open("full", evaluation_batches(self.model, eval_ids))
            # equal beginnings: only the layers will differ
            self.streams |= {name: self.streams["full"].copy() for name in ("quantized", *self._beside())}
        places = [(stack, name, plan) for stack in self.stacks for name, plan in stack.names()]
        for number, (stack, name, plan) in enumerate(places):
            if plan.index == 0 and number > 0:
                for stream in self.streams.values():
                    stream.enter(self.shell, stack)
            stack.layers(self.shell).append(self._layer(number, stack, plan, name, store))
            if release:
                stack.layers(self.model)[plan.index] = nn.Identity()
                give_back()
            if progress is not None:
                progress(number + 1, len(places), name)
        return self._result(eval_ids)

    def _layer(self, number, stack, plan, name, store):
        """Quantise the layer called `name`, the `number`-th of the model, or take it from the store; returns it packed."""
        layer, index = build_layer(self.shell, self.model, stack, plan), plan.index
        if "full" in self.streams:
            self._walk_beside(index, name, layer)
        linears = [linear for linear in self.linears if linear.startswith(f"{name}.")]
        found = None if store is None else store.load(number, layer, name)
        output = None
        if found is not None:
            result = found
        elif self.method != "awq":
            result = nearest_layer(name, layer, linears, self.settings)
        else:
            sites = layer_sites(stack.config, plan, name, layer, keep=self.kept)
            result, output = aware_layer(name, layer, sites, self.streams["calibration"], index, self.settings, self.dtypes)
        self._round_to_storage(name, layer)
        for stream in ("calibration", "probe", "quantized"):
            if stream in self.streams:
                self.streams[stream].advance(layer, index)
        if output is not None:
            result.entry["output_error"] = _relative_error(self.streams["calibration"].hidden, output)
        if missing := sorted(set(linears) - set(result.codes)):
            raise AssertionError(f"these matrices would stay dense silently: {missing[:5]}")
        self._report(result, layer, name)
        self._pack(result, layer, name)
        if store is not None and found is None:
            store.save(number, layer, result)
        return layer

    def _walk_beside(self, index, name, layer):
        """The streams of the full and of the rounded model pass their own layer."""
        self.streams["full"].advance(layer, index)
        if not self._beside():
            return
        rounded = copy.deepcopy(layer)
        linears = [linear for linear in self.linears if linear.startswith(f"{name}.")]
        nearest_layer(name, rounded, linears, self.settings)
        self._round_to_storage(name, rounded)
        self.streams["rtn"].advance(rounded, index)

    def _beside(self):
        """Streams whose perplexity is told beside that of the result: a method that rounds has none but its own."""
        return ("rtn",) if self.method == "awq" else ()

    def _round_to_storage(self, name, layer):
        """Round what stays dense in a layer to its storage dtype, still held in float32."""
        coded = {f"{linear}.weight" for linear in self.linears}
        for part, parameter in layer.named_parameters():
            if f"{name}.{part}" not in coded:
                parameter.copy_(in_storage(f"{name}.{part}", parameter, self.dtypes[f"{name}.{part}"]).float())

    def _report(self, result, layer, name):
        report = self.report
        report.layers.append(result.entry)
        report.skipped_sites.update(result.skipped)
        report.tokens_per_expert.update(result.tokens)
        report.starved_experts += result.starved
        report.quantized_modules += len(result.codes)
        report.quantized_parameters += sum(codes.codes.numel() for codes in result.codes.values())

    def _pack(self, result, layer, name):
        """Replace the coded Linears of a layer by packed ones."""
        for full, codes in result.codes.items():
            part = full.removeprefix(f"{name}.")
            layer.set_submodule(part, self.settings.format.linear.from_codes(codes, layer.get_submodule(part).bias))

    def _result(self, eval_ids):
        report = self.report
        if report.quantized_modules != len(self.linears):
            raise AssertionError(f"{report.quantized_modules} modules are coded, {len(self.linears)} were to be")
        if report.starved_experts:
            report.warnings.append(
                f"{len(report.starved_experts)} experts saw too few calibration tokens and were rounded to nearest"
            )
        overflowing = [entry["name"] for entry in report.layers if entry.get("largest_output", 0.0) > _FP16_MAX]
        if overflowing:
            report.warnings.append(f"outputs of {overflowing} exceed float16; load the checkpoint in bfloat16 or float32")
        errors = {name: error for entry in report.layers for name, error in entry.get("weight_errors", {}).items()}
        if lost := [name for name, error in errors.items() if error > _LOST]:
            report.warnings.append(
                f"codes of {lost[:6]} ({len(lost)} in all) miss most of their weights, too small for a scale"
            )
        for text in report.warnings:
            logger.warning(text)
        if eval_ids is not None:
            report.perplexity, report.divergence = self._compared()
        for parameter in self.shell.parameters():
            parameter.data = parameter.data.float()
        probe = self.streams["probe"]
        expected = outputs_of(self.shell, probe.batches[0], probe.hidden[0])
        return QuantizedModel(self.shell, self.linears, report, self.dtypes, self.config, probe.batches[0], expected)

    def _compared(self):
        """(perplexities, divergences from full precision) of the streams."""
        names = {"full": "full", **{name: name for name in self._beside()}, self.method: "quantized"}
        with in_float32(self.shell):
            perplexity, divergence = compare(self.shell, {name: self.streams[stream] for name, stream in names.items()})
        how = f"float32, {_counted(self.shell.config, self.streams['full'].batches)}"
        return {**perplexity, "how": how}, divergence

    def _skeletons(self):
        """{full name: layer without memory}, one object for all layers of an equal plan but for its index."""
        found = {}
        for stack in self.stacks:
            with torch.device("meta"), stack.as_quantized(self.shell.config):
                found |= {name: TOPOLOGIES[plan.topology](stack.config, plan) for name, plan in stack.names()}
        return found

    def _dense(self, shapes):
        """Full names of what stays dense: Linears, and routers that are no Linear, since other runtimes decide by name."""
        chosen = set(self.linears)
        dense = [n for n, m in self.shell.named_modules() if isinstance(m, nn.Linear)]
        dense += [n for n, m in shapes.items() if isinstance(m, nn.Linear) and n not in chosen]
        return dense + [n for n in shapes if n.endswith(".mlp.gate") and n not in dense]

    def _storage_dtypes(self, skeletons, dtype):
        """Storage dtype of each parameter, those of experts taken apart included."""
        known = storage_dtypes(self.model, dtype)
        # experts taken apart have no entry of their own name in the source
        default = next(iter(known.values()))
        names = [n for n, _ in self.shell.named_parameters()]
        names += [f"{name}.{part}" for name, layer in skeletons.items() for part, _ in layer.named_parameters()]
        return {name: known.get(name, default) for name in names}


def _relative_error(outputs, references):
    wrong = sum((o - r).square().sum() for o, r in zip(outputs, references, strict=True))
    return float(wrong / sum(r.square().sum() for r in references).clamp(min=1e-30))


def _counted(config, batches):
    """What perplexities were measured on, in words."""
    shapes = {batch["input_ids"].shape[1] for batch in batches if len(batch) == 1}
    rows = sum(len(batch["input_ids"]) for batch in batches)
    if len(shapes) == 1 and all(len(batch) == 1 for batch in batches):
        return f"{rows} windows of {shapes.pop()} tokens"
    scored = sum(int((targets_of(config, batch) != IGNORED).sum()) for batch in batches)
    return f"{rows} rows, {scored} tokens scored"
