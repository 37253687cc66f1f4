"""Packing: documents of any length become rows of exactly `sequence_length` tokens.

    concatenate   | B a a a E B b b | b E B c c ... |   documents in a row; one that does not fit goes on in the next row
    best_fit      | B a a a E B c E | B b b b E - - |   a document is cut only where it is longer than a row; - is padding
    within_documents                                    rows of documents at least as long as a row; the rest is left out
    per_document  | B a a a E - - - |   B b b b b b b E |   a row holds one document, or a piece of a longer one

    tokens    | B a a a E B b b |   B bos, E eos
    positions | 0 1 2 3 4 0 1 2 |   restart at every document and at every row
    labels    | - a a a E - b b |   - is -100: nothing predicts the first token of a document or of a row

Notable here: a row is its ids and the lengths of its pieces; positions, labels and masks follow from the lengths, so packed
documents never see each other whichever way they were packed.
"""

from dataclasses import asdict, dataclass, field

import numpy as np

IGNORED = -100
_TEXTS_PER_BATCH = 64
_TOKENS_PER_BLOCK = 1 << 20
# Best fit looks for partners among so many pieces and tokens at a time, so that memory stays bounded.
_PIECES_PER_WINDOW = 1 << 16
_TOKENS_PER_WINDOW = 1 << 26


@dataclass
class PackingStats:
    """What packing did: documents and tokens read, those cut or left out, and padding added."""

    documents: int = 0
    tokens: int = 0
    rows: int = 0
    documents_cut: int = 0
    documents_skipped: int = 0
    tokens_dropped: int = 0
    padding: int = 0

    def to_dict(self):
        """Plain JSON values."""
        return asdict(self)


@dataclass
class RowBlock:
    """Rows that were packed together: ids int32 [rows, T], and for each row the lengths of its pieces, padding left out."""

    ids: np.ndarray
    lengths: list = field(repr=False)


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


def pack_blocks(documents, sequence_length, packing="concatenate", long_documents="cut", pad_id=0, stats=None):
    """Yield `RowBlock`s of documents (int arrays of ids).

    Args:
        packing: a name in `PACKINGS`.
        long_documents: what becomes of a document longer than a row: `cut` into pieces, `skip` it, or `refuse`.
        pad_id: id that fills rows of `best_fit` and `per_document`.
        stats: a `PackingStats` that is counted up.

    Raises:
        ValueError: when sequence_length is less than 2, the documents do not fill one row, or one is refused.
    """
    if sequence_length < 2:
        raise short_row(sequence_length)
    stats = PackingStats() if stats is None else stats
    fitting = _fitting(documents, sequence_length, long_documents, stats)
    for block in PACKINGS[packing](fitting, sequence_length, pad_id, stats):
        stats.rows += len(block.ids)
        yield block
    if not stats.rows and packing == "within_documents":
        raise ValueError(
            f"no document has the {sequence_length} tokens of a row, which data.packing='within_documents' needs; shorten "
            "data.sequence_length or pack otherwise"
        )
    if not stats.rows:
        raise ValueError(
            f"the documents hold {stats.tokens} tokens in all, less than one row of data.sequence_length={sequence_length}"
        )


def pack(documents, sequence_length, **options):
    """Yield rows {input_ids, position_ids, labels} of `sequence_length` one by one; see `pack_blocks`."""
    for block in pack_blocks(documents, sequence_length, **options):
        columns = row_columns(block.ids, block.lengths)
        for index in range(len(block.ids)):
            yield {name: column[index] for name, column in columns.items()}


def row_columns(ids, lengths, masked=False):
    """What a model reads, from ids [rows, T] and the lengths of each row's pieces.

    Returns:
        dict of int32 [rows, T]: input_ids, position_ids, labels, and with `masked` an attention_mask that is zero on padding.
    """
    rows, length = ids.shape
    counts = np.array([len(pieces) for pieces in lengths])
    flat = np.concatenate(lengths).astype(np.int64)
    row = np.repeat(np.arange(rows), counts)
    ends = np.cumsum(flat)
    used = np.add.reduceat(flat, np.cumsum(counts) - counts)
    starts = ends - flat - np.repeat(np.cumsum(used) - used, counts)
    first = np.zeros((rows, length + 1), dtype=bool)
    first[row, starts] = True
    first[np.arange(rows), used] = True  # padding counts positions of its own
    first = first[:, :length]
    index = np.arange(length)
    positions = index - np.maximum.accumulate(np.where(first, index, 0), axis=1)
    real = index < used[:, None]
    columns = {
        "input_ids": ids.astype(np.int32),
        "position_ids": positions.astype(np.int32),
        "labels": np.where(first | ~real, IGNORED, ids).astype(np.int32),
    }
    return {**columns, "attention_mask": real.astype(np.int32)} if masked else columns


def short_row(sequence_length):
    """The ValueError for rows in which nothing can be predicted."""
    return ValueError(f"data.sequence_length={sequence_length} must be at least 2 (one token to read, one to predict)")


def best_fit_bins(lengths, capacity):
    """Best-fit decreasing (Ding et al. 2024, arXiv:2404.10830): lists of indices whose lengths sum to at most `capacity`.

    Every piece goes, longest first, into the fullest bin that still holds it.
    """
    bins, by_room, rooms = [], {}, 0  # bit r of `rooms`: some bin has room for exactly r more tokens
    for index in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        size = int(lengths[index])
        wide_enough = rooms >> size
        if wide_enough:
            room = size + (wide_enough & -wide_enough).bit_length() - 1
            chosen = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, chosen = capacity, len(bins)
            bins.append([])
        bins[chosen].append(index)
        left = room - size
        if left:
            by_room.setdefault(left, []).append(chosen)
            rooms |= 1 << left
    return bins


def _fitting(documents, length, long_documents, stats):
    for document in documents:
        stats.documents += 1
        stats.tokens += len(document)
        if len(document) > length:
            if long_documents == "refuse":
                raise ValueError(
                    f"document {stats.documents} has {len(document)} tokens, more than data.sequence_length={length}, and "
                    "data.long_documents='refuse'; lengthen the rows, or choose 'cut' or 'skip'"
                )
            if long_documents == "skip":
                stats.documents_skipped += 1
                continue
            stats.documents_cut += 1
        yield document


def _concatenated(documents, length, pad_id, stats):
    ids, held = [], 0
    for document in documents:
        ids.append(document)
        held += len(document)
        if held >= max(length, _TOKENS_PER_BLOCK):
            block, rest = _cut(ids, length)
            yield block
            # what is left of the last document goes on in the next block, as it would in the next row
            ids, held = rest, sum(map(len, rest))
    if held >= length:
        block, rest = _cut(ids, length)
        yield block
        held = sum(map(len, rest))
    stats.tokens_dropped += held


def _cut(documents, length):
    """(RowBlock of all full rows, documents that begin in the rest)."""
    sizes = np.array([len(document) for document in documents], dtype=np.int64)
    tokens, ends = np.concatenate(documents), np.cumsum(sizes)
    rows = len(tokens) // length
    full = rows * length
    borders = np.unique(np.concatenate([np.arange(0, full + 1, length), ends[ends < full]]))
    pieces = np.diff(borders).astype(np.int32)
    cuts = np.searchsorted(borders[:-1], np.arange(length, full, length))
    rest = np.split(tokens[full:], ends[(ends > full) & (ends < len(tokens))] - full)
    block = RowBlock(tokens[:full].reshape(rows, length), np.split(pieces, cuts))
    return block, [part for part in rest if len(part)]


def _best_fit(documents, length, pad_id, stats):
    pieces, held = [], 0
    for document in documents:
        pieces += [document[begin : begin + length] for begin in range(0, len(document), length)]
        held += len(document)
        if len(pieces) >= _PIECES_PER_WINDOW or held >= _TOKENS_PER_WINDOW:
            yield _fitted(pieces, length, pad_id, stats)
            pieces, held = [], 0
    if pieces:
        yield _fitted(pieces, length, pad_id, stats)


def _fitted(pieces, length, pad_id, stats):
    sizes = [len(piece) for piece in pieces]
    bins = best_fit_bins(sizes, length)
    ids = np.full((len(bins), length), pad_id, dtype=np.int32)
    lengths = []
    for row, members in zip(ids, bins, strict=True):
        joined = np.concatenate([pieces[index] for index in members])
        row[: len(joined)] = joined
        stats.padding += length - len(joined)
        lengths.append(np.array([sizes[index] for index in members], dtype=np.int32))
    return RowBlock(ids, lengths)


def _within_documents(documents, length, pad_id, stats):
    rows = []
    for document in documents:
        full = len(document) // length
        stats.tokens_dropped += len(document) - full * length
        rows += list(document[: full * length].reshape(full, length))
        if len(rows) * length >= _TOKENS_PER_BLOCK:
            yield RowBlock(np.stack(rows), [np.array([length], dtype=np.int32)] * len(rows))
            rows = []
    if rows:
        yield RowBlock(np.stack(rows), [np.array([length], dtype=np.int32)] * len(rows))


def _per_document(documents, length, pad_id, stats):
    pieces = []
    for document in documents:
        parts = [document[begin : begin + length] for begin in range(0, len(document), length)]
        if len(parts[-1]) < 2:
            # nothing could be predicted from it
            stats.tokens_dropped += len(parts.pop())
        pieces += parts
        if len(pieces) * length >= _TOKENS_PER_BLOCK:
            yield _one_in_each(pieces, length, pad_id, stats)
            pieces = []
    if pieces:
        yield _one_in_each(pieces, length, pad_id, stats)


def _one_in_each(pieces, length, pad_id, stats):
    ids = np.full((len(pieces), length), pad_id, dtype=np.int32)
    for row, piece in zip(ids, pieces, strict=True):
        row[: len(piece)] = piece
        stats.padding += length - len(piece)
    return RowBlock(ids, [np.array([len(piece)], dtype=np.int32) for piece in pieces])


PACKINGS = {
    "concatenate": _concatenated,
    "best_fit": _best_fit,
    "within_documents": _within_documents,
    "per_document": _per_document,
}


def _encode_batch(batch, tokenizer, head, tail):
    # Documents are longer than any context on purpose; verbose=False keeps the tokenizer from warning about it.
    for ids in tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]:
        yield np.array(head + ids + tail, dtype=np.int32)
