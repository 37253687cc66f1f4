"""Checkpoints side by side: held-out perplexity, bytes of the weights and decoding speed, each loaded as a user
would."""


def save_in_bfloat16(source, target):
    """Write the checkpoint `source` with bfloat16 weights into `target`; returns the bytes of its weights."""
    import torch

    from ..quantize.writer import weight_bytes
    from ..training.models import load_model
    from ..training.tokenizer import load_tokenizer

    load_model(source, dtype=torch.bfloat16).save_pretrained(target)
    load_tokenizer(source).save_pretrained(target)
    return weight_bytes(target)


def compare_checkpoints(paths, texts, window, max_tokens=None, prompt="In the beginning", new_tokens=64):
    """Measure checkpoints of one tokenizer.

    Args:
        paths: {name: directory}.
        texts: held-out documents. window, max_tokens: as in `corpus_perplexity`.
        prompt, new_tokens: of the timed generation.

    Returns:
        list of dicts {name, path, dtype, perplexity, bits_per_byte, tokens, bytes, tokens_per_second}.
    """
    from ..evaluation.perplexity import corpus_perplexity
    from ..evaluation.speed import decoding_speed
    from ..quantize.writer import weight_bytes
    from ..training.models import open_checkpoint

    records = []
    for name, path in paths.items():
        model, tokenizer = open_checkpoint(path)
        measured = corpus_perplexity(model, tokenizer, texts, window, max_tokens=max_tokens)
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        record = {"name": name, "path": str(path), "dtype": str(model.dtype).removeprefix("torch.")}
        numbers = {name: getattr(measured, name) for name in ("perplexity", "bits_per_byte", "tokens")}
        speed = decoding_speed(model, ids, new_tokens)
        records.append({**record, **numbers, "bytes": weight_bytes(path), "tokens_per_second": speed})
    return records
