"""What a context extension measures of a model, before training under each method and after it: perplexity by position, and
passkey retrieval at several lengths.

Notable here: held-out rows and keys are the same every time; one model is built per method and serves both.
"""

from itertools import islice

from .compare import bucket_ends, perplexity_by_position
from .rope_swap import scaled_model


def held_out_rows(texts, tokenizer, length, max_tokens=None):
    """Rows of `length` ids, each a continuous part of one document with its bos token first: int64 [rows, length].

    Raises:
        ValueError: where no document is that long.
    """
    import torch

    from ..training.packing import encode_documents

    limit = None if max_tokens is None else max(1, max_tokens // length)
    rows = islice(_full_rows(encode_documents(texts, tokenizer), length), limit)
    rows = [torch.as_tensor(row, dtype=torch.long) for row in rows]
    if not rows:
        raise ValueError(
            f"no held-out document has {length} tokens, so the extended context cannot be measured; hold out longer "
            "documents (data.eval_fraction, data.eval_source) or lower factor"
        )
    return torch.stack(rows)


def measure(spec, model, tokenizer, ids, original):
    """{"perplexity": buckets, "passkey": rows} of one model.

    Args:
        ids: held-out rows [rows, T]. original: tokens of the context before.
    """
    perplexity = perplexity_by_position(model, ids, position_ends(spec, ids.shape[1]))
    return {"perplexity": perplexity, "passkey": _passkey(spec, model, tokenizer, original)}


def measure_methods(spec, model, tokenizer, ids, original, announce):
    """{method: `measure`} of every method of spec.compare, without training."""
    results = {}
    for method in spec.compare:
        options = spec.options if method == spec.method else {}
        scaled = scaled_model(model, method, spec.factor, layers=spec.layers, force=spec.force, **options)
        results[method] = measure(spec, scaled, tokenizer, ids, original)
        announce(f"context: {method}: {_in_words(results[method])}")
    return results


def position_ends(spec, length):
    """Upper ends of the buckets of positions."""
    if spec.position_buckets is None:
        return bucket_ends(length)
    return sorted({max(2, round(length * i / spec.position_buckets)) for i in range(1, spec.position_buckets + 1)})


def passkey_lengths(spec, tokenizer, original, extended):
    """Lengths to look for keys at: those given, or the old context and its doublings that hold the task."""
    from ..evaluation.passkey import passkey_text

    if spec.passkey.trials == 0:
        return []
    if spec.passkey.lengths is not None:
        return list(spec.passkey.lengths)
    lengths, length = [], original
    while length < extended:
        lengths.append(length)
        length *= 2
    fitting = []
    for length in [*lengths, extended]:
        try:
            passkey_text(tokenizer, length, 0.5, "12345")
        except ValueError:
            continue
        fitting.append(length)
    return fitting


def _passkey(spec, model, tokenizer, original):
    from ..evaluation.passkey import passkey_retrieval

    lengths = passkey_lengths(spec, tokenizer, original, model.config.max_position_embeddings)
    rows = passkey_retrieval(model, tokenizer, lengths, spec.passkey.depths, spec.passkey.trials, seed=spec.seed)
    return [{key: value for key, value in row.items() if key != "depths"} for row in rows]


def _in_words(measured):
    last = measured["perplexity"][-1]
    text = f"perplexity {last['perplexity']:.2f} at positions to {last['end']:,}"
    if measured["passkey"]:
        found = ", ".join(f"{row['accuracy']:.0%} at {row['length']:,}" for row in measured["passkey"])
        text += f"; pass keys found: {found}"
    return text


def _full_rows(documents, length):
    for ids in documents:
        for begin in range(0, len(ids) - length + 1, length):
            yield ids[begin : begin + length]
