"""Packing: documents of any length become rows of exactly `sequence_length` tokens.

    tokens    | B a a a E B b b |   B bos, E eos; a document may continue in the next row
    positions | 0 1 2 3 4 0 1 2 |   restart at every document and at every row
    labels    | - a a a E - b b |   - is -100: nothing predicts the first token of the next document

Notable here: rows carry the positions that tell the model where documents end, so packed documents never see each
other; a finished data set appears under its fingerprint at once or not at all.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np

IGNORED = -100
# Part of every fingerprint: raise it when rows come out differently from equal input.
_LAYOUT_VERSION = 1
_TEXTS_PER_BATCH = 64
_ROWS = "rows.arrow"


def encode_documents(texts, tokenizer):
    """Yield one int32 array of ids per document: bos (where the tokenizer has one), the text, eos."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    head, tail = ([] if bos is None else [bos]), [eos]
    batch = []
    for text in texts:
        batch.append(text)
        if len(batch) == _TEXTS_PER_BATCH:
            yield from _encode_batch(batch, tokenizer, head, tail)
            batch = []
    if batch:
        yield from _encode_batch(batch, tokenizer, head, tail)


def pack(documents, sequence_length):
    """Yield rows {input_ids, position_ids, labels} of `sequence_length` from arrays of ids; the last, partial row is
    dropped.

    Raises:
        ValueError: when sequence_length is less than 2 or the documents do not fill one row.
    """
    if sequence_length < 2:
        raise short_row(sequence_length)
    ids, starts, held, rows = [], [], 0, 0
    for document in documents:
        starts.append(np.arange(len(document)) == 0)
        ids.append(document)
        held += len(document)
        if held < sequence_length:
            continue
        tokens, first = np.concatenate(ids), np.concatenate(starts)
        full = held // sequence_length * sequence_length
        for begin in range(0, full, sequence_length):
            yield make_row(tokens[begin : begin + sequence_length], first[begin : begin + sequence_length])
            rows += 1
        ids, starts, held = [tokens[full:]], [first[full:]], held - full
    if not rows:
        raise ValueError(
            f"the documents hold {held} tokens in all, less than one row of data.sequence_length={sequence_length}"
        )


def short_row(sequence_length):
    """The ValueError for rows in which nothing can be predicted."""
    return ValueError(f"data.sequence_length={sequence_length} must be at least 2 (one token to read, one to predict)")


def make_row(tokens, first):
    """One row from ids [T] and a bool [T] that marks the first token of each document."""
    index = np.arange(len(tokens))
    begin = np.maximum.accumulate(np.where(first, index, 0))
    return {
        "input_ids": tokens.astype(np.int32),
        "position_ids": (index - begin).astype(np.int32),
        "labels": np.where(first, IGNORED, tokens).astype(np.int32),
    }


def packed_dataset(texts, tokenizer, sequence_length, cache_dir, source_fingerprint, name="train"):
    """Packed rows as a memory-mapped `datasets.Dataset`, made once per fingerprint of texts, tokenizer and length.

    Args:
        texts: documents, read only when the cache misses.
        source_fingerprint: digest of the texts (`documents_fingerprint`).
        name: beginning of the directory's name in `cache_dir`.
    """
    from datasets import Dataset

    settings = {"texts": source_fingerprint, "tokenizer": tokenizer_fingerprint(tokenizer), "length": sequence_length}
    text = json.dumps({**settings, "layout": _LAYOUT_VERSION}, sort_keys=True)
    target = Path(cache_dir) / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not target.is_dir():
        _write(pack(encode_documents(texts, tokenizer), sequence_length), target, sequence_length)
    return Dataset.from_file(str(target / _ROWS)).with_format("torch")


def tokenizer_fingerprint(tokenizer):
    """Hex digest of everything that decides the ids of a fast tokenizer."""
    parts = tokenizer.backend_tokenizer.to_str() + repr((tokenizer.bos_token_id, tokenizer.eos_token_id))
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _encode_batch(batch, tokenizer, head, tail):
    # Documents are longer than any context on purpose; verbose=False keeps the tokenizer from warning about it.
    for ids in tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]:
        yield np.array(head + ids + tail, dtype=np.int32)


def _write(rows, target, sequence_length):
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    features = Features({name: List(Value("int32")) for name in ("input_ids", "position_ids", "labels")})
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with ArrowWriter(path=str(partial / _ROWS), features=features, writer_batch_size=1000) as writer:
        for row in rows:
            writer.write(row)
        writer.finalize()
    if target.exists():
        shutil.rmtree(partial)
    else:
        partial.rename(target)
