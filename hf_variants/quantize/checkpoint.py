"""Checkpoint in, quantized checkpoint out: what `hf-variants quantize` calls."""

import math
import shutil
from pathlib import Path

import torch

from ..analysis.joined import refuse_several_stacks
from .batches import fingerprint_tensors, sees_images
from .checks import check_pattern_list, check_predicts_next, refuse_quantized_config
from .formats import METHOD_WIDTHS, width_of
from .memory import give_back
from .producers import check_producer
from .sensitivity import dense_within, size_of
from .stacks import check_stacks, main_config, stacks_of
from .store import LayerStore, fingerprint_of_weights
from .whole_model import quantize_awq, quantize_int8, quantize_rtn
from .writer import check_target, refuse_source_as_target, save_quantized, weight_bytes

METHODS = tuple(METHOD_WIDTHS)
TARGETS = ("variants", "native")


def quantize_checkpoint(
    src,
    dst,
    *,
    method="awq",
    bits=None,
    group_size=None,
    symmetric=False,
    calibration=None,
    eval_ids=None,
    leave_unquantized=(),
    max_bytes=None,
    to="variants",
    producer="own",
    producer_python=None,
    tokenizer=None,
    overwrite=False,
    dtype=None,
    progress=None,
    **awq_options,
):
    """Quantise the checkpoint in `src` and write it to `dst`, complete and verified, or not at all.

    An interrupted call with the same arguments continues with the layer it had reached (not so AutoAWQ's).

    Args:
        src: folder or hub id of a variants checkpoint, or of a native one that `hf_variants.convert` knows.
        dst: folder to write, with `quantization_report.json` beside the weights.
        method: `awq` (needs `calibration`), `rtn`, or `int8` (weights alone in 8 bits, always symmetric).
        bits, group_size: None takes those of the method: 4 and 64, for `int8` 8 and -1 (one scale per output).
        symmetric, leave_unquantized, dtype, progress: as in `quantize_awq`.
        calibration: token ids or batches, as in `quantize_awq`.
        eval_ids: token ids [rows, tokens], or batches; when given, the perplexity of the full model, of rounding to nearest
            and of the result are measured in float32 and reported.
        max_bytes: the size that the weights may have; what room is left beyond all in 4 bits goes to the Linears with the
            largest measured error per byte, which stay dense. This quantises twice. None leaves none dense.
        to: `variants`, or `native`: the class and the names of the native family, as serving engines read them.
        producer: `own`, or `autoawq`: AutoAWQ searches and codes, in the interpreter `producer_python` that has it; what it
            writes is brought in, measured and checked as our own work is. Reads `group_size`, `clip` and `calibration_length`.
        tokenizer: written along; None takes the one in `src`, if there is one.
        overwrite: whether a folder in the way is replaced.
        awq_options: `clip`, `compensate`, `calibration_length`, `batch_size`, `min_expert_tokens` of `quantize_awq`.

    Returns:
        dict, the report as written.

    Raises:
        ValueError: for bad settings, shapes, tokens or weights, before or during the work; `dst` does not exist then.
        RuntimeError: where what was written does not load as what was quantised, or AutoAWQ fails; nor then.
    """
    check_arguments(method, bits, group_size, to, calibration, awq_options, max_bytes)
    asked = {"symmetric": symmetric, "leave_unquantized": leave_unquantized, "max_bytes": max_bytes, "options": awq_options}
    check_producer(producer, producer_python, method=method, group_size=group_size, **asked)
    bits, group_size = width_of(method, bits, group_size)
    check_pattern_list(leave_unquantized)
    refuse_source_as_target(src, dst)
    check_target(dst, overwrite)
    model = load_full_precision(src)
    check_predicts_next(main_config(model.config), eval_ids)
    give_back()
    if to == "native":
        from .native_export import check_native

        check_native(model)
    facts = {"source": str(src)}
    if Path(src).is_dir():
        facts["source_bytes"] = weight_bytes(src)
    if producer == "autoawq":
        result, told = _by_autoawq(
            model, calibration, dst, producer_python, group_size, eval_ids, progress, dtype, awq_options
        )
        return _save(result, dst, to, tokenizer or _tokenizer_of(src), overwrite, facts | told)
    options = {"bits": bits, "group_size": group_size, "leave_unquantized": list(leave_unquantized)}
    if method != "int8":
        options["symmetric"] = symmetric
    check_disk(model, dst, bits)
    run = _Runner(model, dst, method, calibration, eval_ids, {**options, "dtype": dtype}, awq_options, progress)
    result = run(release=max_bytes is None)
    if max_bytes is not None:
        kept, facts["budget"] = dense_within(result, max_bytes)
        if kept:
            run.stores[0].remove()
            result = run([*leave_unquantized, *kept], release=True)
            facts["budget"]["bytes_expected"] = size_of(result)
    report = _save(result, dst, to, tokenizer or _tokenizer_of(src), overwrite, facts)
    for store in run.stores:
        store.remove()
    return report


def _by_autoawq(model, calibration, dst, python, group_size, eval_ids, progress, dtype, options):
    from .autoawq import quantize_by_autoawq

    # the source in float32, what AutoAWQ makes of it, and the result
    check_disk(model, dst, beside=6)
    measured = {"eval_ids": eval_ids, "progress": progress, "dtype": dtype}
    return quantize_by_autoawq(model, calibration, dst, python, group_size=group_size, **measured, **options)


def _save(result, dst, to, tokenizer, overwrite, facts):
    save = save_quantized
    if to == "native":
        from .native_export import save_native as save
    return save(result, dst, tokenizer=tokenizer, overwrite=overwrite, facts=facts)


class _Runner:
    """Calls `quantize_awq`, `quantize_rtn` or `quantize_int8` on one model with a store beside the target."""

    def __init__(self, model, dst, method, calibration, eval_ids, options, awq_options, progress):
        self.model, self.dst, self.method, self.options = model, dst, method, options
        self.calibration, self.eval_ids, self.awq_options, self.progress = calibration, eval_ids, awq_options, progress
        self.weights = fingerprint_of_weights(model)
        self.stores = []

    def __call__(self, leave_unquantized=None, release=False):
        options = dict(self.options)
        if leave_unquantized is not None:
            options["leave_unquantized"] = leave_unquantized
        settings = {**options, **self.awq_options, "method": self.method, "weights": self.weights}
        tensors = fingerprint_tensors(self.calibration) if self.method == "awq" else {}
        store = LayerStore.beside(self.dst, settings, tensors)
        self.stores.append(store)
        common = {**options, "eval_ids": self.eval_ids, "store": store, "release": release, "progress": self.progress}
        if self.method == "awq":
            return quantize_awq(self.model, self.calibration, **common, **self.awq_options)
        return (quantize_int8 if self.method == "int8" else quantize_rtn)(self.model, **common)


def check_arguments(method, bits, group_size, to="variants", calibration=None, awq_options=(), max_bytes=None):
    """Everything that is wrong whatever the model is; raises ValueError."""
    if to not in TARGETS:
        raise ValueError(f"to={to!r} is unknown; choose from {list(TARGETS)}")
    width_of(method, bits, group_size)
    if method == "awq" and calibration is None:
        raise ValueError("method='awq' needs calibration=token ids; give some, or use method='rtn'")
    if method != "awq" and calibration is not None:
        raise ValueError(f"calibration means nothing to method={method!r}; leave it out or use method='awq'")
    if method != "awq" and awq_options:
        raise ValueError(f"{sorted(awq_options)} mean nothing to method={method!r}; leave them out or use method='awq'")
    if method != "awq" and max_bytes is not None:
        raise ValueError(
            f"max_bytes needs errors measured on calibration tokens, which method={method!r} has not; use method='awq'"
        )


def check_disk(model, dst, bits=4, beside=0):
    """Raise ValueError when the disk of `dst` cannot hold what will be written: the layers kept on the way and the result, and
    `beside` bytes for every weight."""
    directory = Path(dst).resolve().parent
    while not directory.exists():
        directory = directory.parent
    inside = sum(p.numel() for stack in stacks_of(model) for p in stack.layers(model).parameters())
    total = sum(p.numel() for p in model.parameters())
    # one bit per weight for scales in the layers, twice (on the way and in the result), 16 elsewhere
    needed = int(2 * inside * (bits + 1.2) / 8 + 2 * (total - inside) + beside * total)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ValueError(
            f"output {str(dst)!r}: about {needed / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free on that disk; "
            "make room or name a folder on another one"
        )


def load_full_precision(src):
    """The model in `src`, of the class that its config names, brought in from its native family where it is not one of ours.

    Raises:
        ValueError: for a checkpoint that is quantised already, or whose stacks are not known, before its weights are read; for
            one without a config or weights.
    """
    from hf_variants.convert import from_native

    config = config_at(src)
    refuse_quantized_config(config)
    ours = config.model_type.split("_")[0] == "variants"
    if ours:
        check_stacks(config)
    try:
        return _class_of(config).from_pretrained(src, dtype="auto") if ours else from_native(src)
    except OSError as error:
        raise ValueError(f"no whole weights found at {str(src)!r}: {' '.join(str(error).split())}") from error


def load_one_stack(src):
    """As `load_full_precision`, for what measures the rows of one stack of layers.

    Raises:
        ValueError: also for an encoder-decoder and for a model that reads images, before their weights are read.
    """
    check_one_stack(src)
    return load_full_precision(src)


def check_one_stack(src):
    """The config at `src`. Raises ValueError for what `load_one_stack` would refuse, so far as the config tells."""
    config = config_at(src)
    refuse_quantized_config(config)
    refuse_several_stacks(config, src)
    refuse_unknown_type(config)
    return config


def config_at(src):
    """The config of a folder or Hub id. Raises ValueError, with the reason, where there is none that can be read."""
    from transformers import AutoConfig

    from hf_variants.convert.config_source import keys_of_folder

    path = Path(src)
    if path.is_file() and path.suffix != ".json":
        raise ValueError(f"{str(src)!r} is a file; give the folder of a checkpoint, or a repository id")
    if path.is_dir():
        keys_of_folder(path)
    try:
        return AutoConfig.from_pretrained(src)
    except OSError as error:
        raise ValueError(f"no config found at {str(src)!r}: give a folder with a config.json, or a repository id") from error


def refuse_unknown_type(config):
    """Raise ValueError, naming the nearest, for a native type that does not convert."""
    from hf_variants.convert.registry import find_family
    from hf_variants.convert.vision_conversion import is_vision_type

    if config.model_type.split("_")[0] != "variants" and not is_vision_type(config.model_type):
        find_family(config.model_type)


def _class_of(config):
    """The class of ours that a config names, else the usual one of its kind."""
    import hf_variants
    from hf_variants.convert.sides import class_of

    named = [name for name in config.architectures or [] if name in hf_variants.__all__]
    if named:
        return getattr(hf_variants, named[0])
    return hf_variants.VariantsForImageTextToText if sees_images(config) else class_of(config)


@torch.no_grad()
def ids_perplexity(model, ids):
    """exp of the mean cross-entropy of every token of `ids` [rows, tokens] but the first of its row."""
    total, count = 0.0, 0
    for row in ids.split(1):
        logits = model(input_ids=row, use_cache=False).logits[:, :-1].float()
        total += float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten(), reduction="sum"))
        count += row[:, 1:].numel()
    return math.exp(total / count)


def _tokenizer_of(src):
    from transformers import AutoTokenizer

    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    if Path(src).is_dir() and not any((Path(src) / name).exists() for name in names):
        return None
    return AutoTokenizer.from_pretrained(src)
