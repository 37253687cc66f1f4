"""Checkpoint in, 4-bit checkpoint out: what `hf-variants quantize` calls."""

import math
from pathlib import Path

import torch

from .awq import quantize_awq, quantize_rtn
from .writer import check_target, save_quantized, weight_bytes, write_report

METHODS = ("awq", "rtn")


def quantize_checkpoint(
    src,
    dst,
    *,
    method="awq",
    bits=4,
    group_size=64,
    calibration=None,
    eval_ids=None,
    leave_unquantized=(),
    tokenizer=None,
    overwrite=False,
    dtype=None,
    progress=None,
    **awq_options,
):
    """Quantise the checkpoint in `src` and write it to `dst`, complete and verified, or not at all.

    Args:
        src: folder or hub id of a variants checkpoint, or of a native one that `hf_variants.convert` knows.
        dst: folder to write, with `quantization_report.json` beside the weights.
        method: `awq` (needs `calibration`) or `rtn`.
        bits, group_size, leave_unquantized, dtype, progress: as in `quantize_awq`.
        calibration: token ids, as in `quantize_awq`.
        eval_ids: token ids [rows, tokens]; when given, the perplexity of the full model, of rounding to nearest and of the
            result are measured in float32 and reported.
        tokenizer: written along; None takes the one in `src`, if there is one.
        overwrite: whether a folder in the way is replaced.
        awq_options: `clip`, `calibration_length`, `batch_size`, `min_expert_tokens` of `quantize_awq`.

    Returns:
        dict, the report as written.

    Raises:
        ValueError: for bad settings, shapes, tokens or weights, before or during the work; nothing is written then.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; choose from {list(METHODS)}")
    if method == "awq" and calibration is None:
        raise ValueError("method='awq' needs calibration=token ids; give some, or use method='rtn'")
    if method == "rtn" and awq_options:
        raise ValueError(f"{sorted(awq_options)} mean nothing to method='rtn'; leave them out or use method='awq'")
    check_target(dst, overwrite)
    model = load_full_precision(src)
    common = {"bits": bits, "group_size": group_size, "leave_unquantized": leave_unquantized, "dtype": dtype}
    perplexity = {}
    if eval_ids is not None:
        if method == "awq":
            perplexity["rtn"] = ids_perplexity(quantize_rtn(model, **common).model, eval_ids)
        perplexity["full"] = None
    if method == "awq":
        result = quantize_awq(model, calibration, progress=progress, **common, **awq_options)
    else:
        result = quantize_rtn(model, progress=progress, **common)
    if eval_ids is not None:
        perplexity[method] = ids_perplexity(result.model, eval_ids)
        perplexity["full"] = ids_perplexity(model.float(), eval_ids)
        perplexity["how"] = f"float32, {eval_ids.shape[0]} windows of {eval_ids.shape[1]} tokens"
    facts = save_quantized(result, dst, tokenizer=tokenizer or _tokenizer_of(src), overwrite=overwrite)
    report = {**result.report.to_dict(), **facts, "source": str(src), "perplexity": perplexity}
    if Path(src).is_dir():
        report["source_bytes"] = weight_bytes(src)
    write_report(dst, report)
    return report


def load_full_precision(src):
    """The VariantsForCausalLM in `src`, brought in from its native family where it is not one of ours."""
    from transformers import AutoConfig

    from hf_variants.convert import from_native
    from hf_variants.modeling.modeling_variants import VariantsForCausalLM

    if AutoConfig.from_pretrained(src).model_type != VariantsForCausalLM.config_class.model_type:
        return from_native(src)
    return VariantsForCausalLM.from_pretrained(src, dtype="auto")


@torch.no_grad()
def ids_perplexity(model, ids):
    """exp of the mean cross-entropy of every token of `ids` [rows, tokens] but the first of its row."""
    total, count = 0.0, 0
    for row in ids.split(4):
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
