"""Packed rows on disk: documents are tokenised once and packed once, each into a parquet file under its fingerprint.

    data/tokens-TEXTS+TOKENIZER/documents.parquet          ids: list<int32>, one row per document, borders kept
    data/train-TEXTS+TOKENIZER+LENGTH+.../rows.parquet     input_ids: list<int32>, lengths: list<int32> of the pieces
                                         /packing.json     the settings, and what was counted

Notable here: a folder appears at once or not at all; rows are memory-mapped, so a data set may be larger than memory; other
rows of the same documents start from their tokens.
"""

import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from .packing import PackingStats, encode_documents, pack_blocks, row_columns
from .stages import fingerprint_of

# Part of every fingerprint: raise it when rows come out differently from equal input.
_LAYOUT_VERSION = 2
_TOKENS, _ROWS, _INFO = "documents.parquet", "rows.parquet", "packing.json"
_DOCUMENTS_PER_GROUP = 1000


class PackedRows(torch.utils.data.Dataset):
    """The rows of a folder written by `packed_dataset`; a row is a dict of int32 tensors [T].

    Keys: input_ids, position_ids, labels, and attention_mask where rows hold padding.
    """

    def __init__(self, folder):
        from datasets import Dataset

        self.folder = Path(folder)
        info = json.loads((self.folder / _INFO).read_text(encoding="utf-8"))
        self.stats, self.masked = info["stats"], info["stats"]["padding"] > 0
        with _no_bars():
            rows = Dataset.from_parquet(str(self.folder / _ROWS), cache_dir=str(self.folder / "memory_map"))
        self.rows = rows.with_format("arrow")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        columns = {name: torch.from_numpy(column) for name, column in self.columns(indices).items()}
        return [{name: column[row] for name, column in columns.items()} for row in range(len(indices))]

    def columns(self, indices):
        """The rows at `indices` (list or slice) as a dict of int32 arrays [rows, T]."""
        table = self.rows[indices]
        ids = table["input_ids"].combine_chunks()
        lengths = table["lengths"].combine_chunks()
        matrix = ids.flatten().to_numpy().reshape(len(ids), -1)
        return row_columns(matrix, _split_lists(lengths), self.masked)

    def batches(self, size=1000):
        """Yield `columns` of consecutive rows."""
        for begin in range(0, len(self), size):
            yield self.columns(slice(begin, begin + size))


def packed_dataset(
    texts,
    tokenizer,
    sequence_length,
    cache_dir,
    source_fingerprint,
    name="train",
    packing="concatenate",
    long_documents="cut",
):
    """`PackedRows` of documents, made once per fingerprint of texts, tokenizer, length and way of packing.

    Args:
        texts: documents, read only when their tokens are not cached.
        source_fingerprint: digest of the texts (`documents_fingerprint`).
        name: beginning of the directory's name in `cache_dir`.
        packing, long_documents: as in `pack_blocks`.
    """
    tokens = {"texts": source_fingerprint, "tokenizer": tokenizer_fingerprint(tokenizer), "layout": _LAYOUT_VERSION}
    pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    settings = {**tokens, "length": sequence_length, "packing": packing, "long_documents": long_documents, "pad_id": pad_id}
    target = Path(cache_dir) / f"{name}-{fingerprint_of(settings)}"
    if not target.is_dir():
        folder = Path(cache_dir) / f"tokens-{fingerprint_of(tokens)}"
        if not folder.is_dir():
            write_tokens(encode_documents(texts, tokenizer), folder)
        stats = PackingStats()
        blocks = pack_blocks(read_tokens(folder), sequence_length, packing, long_documents, pad_id, stats)
        write_rows(blocks, target, settings, stats)
    return PackedRows(target)


def write_tokens(documents, folder):
    """Write the ids of documents (int32 arrays) into a new folder."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    schema = arrow.schema([("ids", arrow.list_(arrow.int32()))])
    with _appearing(folder) as partial, parquet.ParquetWriter(partial / _TOKENS, schema, compression="zstd") as writer:
        for group in _groups(documents, _DOCUMENTS_PER_GROUP):
            writer.write_table(arrow.table({"ids": _lists(group)}, schema=schema))


def read_tokens(folder):
    """Yield the ids (int32 arrays) of every document in a folder written by `write_tokens`."""
    import pyarrow.parquet as parquet

    for batch in parquet.ParquetFile(Path(folder) / _TOKENS).iter_batches(batch_size=_DOCUMENTS_PER_GROUP):
        yield from _split_lists(batch.column(0))


def tokenizer_fingerprint(tokenizer):
    """Hex digest of everything that decides the ids of a fast tokenizer."""
    parts = tokenizer.backend_tokenizer.to_str() + repr((tokenizer.bos_token_id, tokenizer.eos_token_id))
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def write_rows(blocks, folder, settings, stats):
    """Write `RowBlock`s into a new folder, beside the settings and the `PackingStats` that they count up."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    schema = arrow.schema([(name, arrow.list_(arrow.int32())) for name in ("input_ids", "lengths")])
    with _appearing(folder) as partial:
        with parquet.ParquetWriter(partial / _ROWS, schema, compression="zstd") as writer:
            for block in blocks:
                table = {"input_ids": _lists(block.ids), "lengths": _lists(block.lengths)}
                writer.write_table(arrow.table(table, schema=schema), row_group_size=1 << 14)
        info = json.dumps({"settings": settings, "stats": stats.to_dict()}, indent=2)
        (partial / _INFO).write_text(info, encoding="utf-8")


def _lists(arrays):
    """An arrow array of lists from arrays of int32."""
    import pyarrow as arrow

    offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays])]).astype(np.int32)
    flat = arrays.reshape(-1) if isinstance(arrays, np.ndarray) else np.concatenate(arrays)
    return arrow.ListArray.from_arrays(arrow.array(offsets), arrow.array(flat.astype(np.int32, copy=False)))


def _split_lists(lists):
    """The lists of an arrow array as views of one numpy array."""
    offsets = lists.offsets.to_numpy()
    values = lists.values.to_numpy()
    return [values[begin:end] for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def _groups(items, size):
    group = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


@contextmanager
def _no_bars():
    """`datasets` shows a bar for the moment in which it maps a file."""
    from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    silent = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not silent:
            enable_progress_bars()


class _appearing:
    """A folder that takes its name when it is complete, and leaves nothing where its making failed."""

    def __init__(self, target):
        self.target = Path(target)
        self.partial = self.target.with_name(f"{self.target.name}.partial-{os.getpid()}")

    def __enter__(self):
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        return self.partial

    def __exit__(self, kind, error, traceback):
        if kind is not None or self.target.exists():
            shutil.rmtree(self.partial)
        else:
            self.partial.rename(self.target)
