"""`hf-variants kv-heads`: a checkpoint with more or fewer key-value heads, and what that cost in quality."""

import json

from ..training.processes import print_once

REPORT = "kv_heads_report.json"
WINDOW, MAX_TOKENS = 512, 8192


def change_kv_heads(
    src,
    dst,
    heads,
    method="mean",
    order="kept",
    texts=None,
    calibration=None,
    window=None,
    max_tokens=None,
    progress=None,
    announce=print_once,
):
    """Write `dst` with `heads` key-value heads; returns the report, which is also written beside the weights.

    Args:
        src: checkpoint folder or Hub id, of the family or of a native type that converts.
        dst: new folder; it appears whole or not at all.
        method, order: see `surgery.kv_heads`.
        texts: documents (list of str) on which perplexity before and after is measured; None measures none.
        calibration: documents by whose activations errors are weighed; None weighs by weights alone.
        window, max_tokens: tokens per window and in all, of either text; None: 512 and 8,192.
        progress: called with (done, layers).

    Raises:
        ValueError: for heads that cannot be made, an unreadable source, or a folder that is in the way.
    """
    from ..convert.new_folder import check_free, new_folder
    from ..quantize.checkpoint import load_one_stack
    from ..surgery import kv_heads
    from ..surgery.kv_heads import check_change
    from ..training.tokenizer import load_tokenizer

    for name, value in (("window", window), ("max_tokens", max_tokens)):
        if value is not None and value < 2:
            raise ValueError(f"{name}={value} must be at least 2 (one token to read, one to predict)")
        if value is not None and texts is None and calibration is None:
            raise ValueError(f"{name}={value} cuts texts, and none is read; give --text or --calibration, or leave it out")
    window, max_tokens = window or WINDOW, max_tokens or MAX_TOKENS
    check_free(dst)
    check_change(_config_of(src), heads, method, order, calibration is not None)
    tokenizer = load_tokenizer(src) if texts is not None or calibration is not None else _tokenizer_of(src)
    rows = None if calibration is None else _rows(calibration, tokenizer, window, max_tokens)
    model = load_one_stack(src)
    before = _perplexity(model, tokenizer, texts, window, max_tokens)
    announce(f"{model.config.num_key_value_heads} key-value heads become {heads}")
    changed, report = kv_heads(model, heads, method, order, rows, progress)
    facts = report.as_dict()
    if texts is not None:
        facts["perplexity"] = {"before": before, "after": _perplexity(changed, tokenizer, texts, window, max_tokens)}
    with new_folder(dst) as folder:
        changed.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        (folder / REPORT).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts


def _config_of(src):
    """Our config of a checkpoint, without its weights."""
    from ..convert.config_conversion import config_from_native
    from ..convert.quiet import quiet
    from ..quantize.checkpoint import check_one_stack

    config = check_one_stack(src)
    if config.model_type == "variants":
        return config
    with quiet():
        return config_from_native(config)


def _rows(texts, tokenizer, window, max_tokens):
    from .quantization import calibration_ids

    try:
        return calibration_ids(texts, tokenizer, max(1, max_tokens // window), window).split(4)
    except ValueError as error:
        raise ValueError(f"calibration: {error}".replace("length=", "window=")) from None


def _tokenizer_of(src):
    from ..training.tokenizer import load_tokenizer

    try:
        return load_tokenizer(src)
    except ValueError:
        return None  # the checkpoint has none, or one that is of no use to it


def _perplexity(model, tokenizer, texts, window, max_tokens):
    if texts is None:
        return None
    from ..evaluation.perplexity import corpus_perplexity

    return corpus_perplexity(model, tokenizer, texts, window=window, max_tokens=max_tokens).perplexity
