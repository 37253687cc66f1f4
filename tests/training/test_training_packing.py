"""Packed rows. B24: the first token of a document is never a target of the document before it; eos still is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_variants.training.documents import documents_fingerprint
from hf_variants.training.packing import PackingStats, best_fit_bins, encode_documents, pack, pack_blocks, row_columns
from hf_variants.training.row_files import packed_dataset
from hf_variants.training.specs import TokenizerSpec
from hf_variants.training.tokenizer import train_tokenizer
from hf_variants.training.trainer import collate_rows

TEXTS = ["In the beginning", "And the earth was without form, and void;", "Let there be light"] * 5


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, TokenizerSpec(vocab_size=280))


def test_two_rows():
    ids = np.array([[0, 5, 6, 1, 0, 7, 1, 0], [8, 9, 1, 0, 4, 1, 3, 3]])
    columns = row_columns(ids, [np.array([4, 3, 1]), np.array([3, 3])], masked=True)
    assert columns["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 0], [0, 1, 2, 0, 1, 2, 0, 1]]
    assert columns["labels"].tolist() == [[-100, 5, 6, 1, -100, 7, 1, -100], [-100, 9, 1, -100, 4, 1, -100, -100]]
    assert columns["attention_mask"].tolist() == [[1] * 8, [1] * 6 + [0, 0]]


@pytest.mark.parametrize("block", [1, 1 << 20])
def test_b24_packing_boundaries(tokenizer, block, monkeypatch):
    monkeypatch.setattr("hf_variants.training.packing._TOKENS_PER_BLOCK", block)
    documents = list(encode_documents(TEXTS, tokenizer))
    rows = list(pack(documents, 16))
    stream, bos, eos = np.concatenate(documents), tokenizer.bos_token_id, tokenizer.eos_token_id
    packed = np.concatenate([row["input_ids"] for row in rows])
    labels = np.concatenate([row["labels"] for row in rows])
    positions = np.concatenate([row["position_ids"] for row in rows])
    assert len(rows) == len(stream) // 16
    assert (packed == stream[: len(packed)]).all()
    assert (labels[packed == bos] == -100).all() and (positions[packed == bos] == 0).all()
    inner = np.arange(len(packed)) % 16 > 0
    assert (labels[inner & (packed == eos)] == eos).all() and (labels[~inner] == -100).all()
    assert (labels[inner & (packed != bos)] == packed[inner & (packed != bos)]).all()
    assert all(row["position_ids"][0] == 0 for row in rows)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(2, 20))
def test_every_packing_keeps_every_token_and_border(sizes, length):
    numbers = np.split(np.arange(sum(sizes), dtype=np.int32), np.cumsum(sizes)[:-1])
    starts = {int(document[0]) for document in numbers}
    for packing in ("concatenate", "best_fit"):
        stats = PackingStats()
        if packing == "concatenate" and sum(sizes) < length:
            continue
        blocks = list(pack_blocks(iter(numbers), length, packing, pad_id=-1, stats=stats))
        seen = []
        for block in blocks:
            for row, pieces in zip(block.ids, block.lengths, strict=True):
                used = int(sum(pieces))
                assert used <= length and (row[used:] == -1).all()
                for piece in np.split(row[:used], np.cumsum(pieces)[:-1]):
                    # a piece is a stretch of one document
                    assert (np.diff(piece) == 1).all() and not starts & set(piece[1:].tolist())
                    seen += piece.tolist()
        assert len(seen) == len(set(seen)) == stats.tokens - stats.tokens_dropped
        assert stats.tokens == sum(sizes) and stats.rows == sum(len(block.ids) for block in blocks)
        assert stats.rows * length == len(seen) + stats.padding
        if packing == "best_fit":
            assert stats.tokens_dropped == 0
            assert stats.rows <= sum(-(-size // length) for size in sizes)


def test_best_fit_fills_the_fullest_bin():
    assert best_fit_bins([6, 5, 5, 4, 3, 1], 10) == [[0, 3], [1, 2], [4, 5]]
    assert best_fit_bins([10, 10], 10) == [[0], [1]]


def test_long_documents():
    documents = [np.arange(5), np.arange(20), np.arange(6)]
    stats = PackingStats()
    list(pack_blocks(documents, 8, "best_fit", "skip", stats=stats))
    assert (stats.documents, stats.documents_skipped, stats.rows) == (3, 1, 2)
    list(pack_blocks(documents, 8, "best_fit", "cut", stats=(stats := PackingStats())))
    assert (stats.documents_cut, stats.rows, stats.padding) == (1, 5, 9)
    with pytest.raises(ValueError, match="document 2 has 20 tokens, more than data.sequence_length=8"):
        list(pack_blocks(documents, 8, "best_fit", "refuse"))


def test_documents_begin_with_bos_and_end_with_eos(tokenizer):
    for text, ids in zip(TEXTS, encode_documents(TEXTS, tokenizer), strict=True):
        assert ids[0] == tokenizer.bos_token_id and ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(ids[1:-1]) == text


def test_cache_is_read_again_and_its_key_sees_every_input(tokenizer, tmp_path):
    print_of = documents_fingerprint(TEXTS)
    first = packed_dataset(TEXTS, tokenizer, 16, tmp_path, print_of)
    again = packed_dataset(None, tokenizer, 16, tmp_path, print_of)  # reads no text
    expected = np.stack([row["input_ids"] for row in pack(encode_documents(TEXTS, tokenizer), 16)])
    for rows in (first, again):
        assert (rows.columns(slice(None))["input_ids"] == expected).all()
    folders = lambda kind: len(list(tmp_path.glob(f"{kind}-*")))  # noqa: E731
    assert (folders("train"), folders("tokens")) == (1, 1)
    packed_dataset(None, tokenizer, 8, tmp_path, print_of)  # other rows of the same tokens
    packed_dataset(None, tokenizer, 8, tmp_path, print_of, packing="best_fit")
    assert (folders("train"), folders("tokens")) == (3, 1)
    packed_dataset(TEXTS[:9], tokenizer, 16, tmp_path, documents_fingerprint(TEXTS[:9]))
    packed_dataset(TEXTS, train_tokenizer(TEXTS, TokenizerSpec(vocab_size=270)), 16, tmp_path, print_of)
    assert (folders("train"), folders("tokens")) == (5, 3)


def test_a_failed_packing_leaves_nothing(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="less than one row"):
        packed_dataset(TEXTS[:1], tokenizer, 4096, tmp_path, "x")
    assert not list(tmp_path.glob("train-*")) and not list(tmp_path.glob("*partial*"))


def test_rows_with_padding_carry_a_mask(tokenizer, tmp_path):
    rows = packed_dataset(TEXTS, tokenizer, 32, tmp_path, "x", packing="best_fit")
    batch = collate_rows([rows[index] for index in range(len(rows))])
    pads = batch["attention_mask"] == 0
    assert pads.any() and (batch["input_ids"][pads] == tokenizer.pad_token_id).all()
    assert (batch["labels"][pads] == -100).all()


def test_batches_are_int64(tokenizer, tmp_path):
    rows = packed_dataset(TEXTS, tokenizer, 16, tmp_path, "x")
    batch = collate_rows([rows[0], rows[1]])
    assert {name: (tuple(t.shape), str(t.dtype)) for name, t in batch.items()} == {
        name: ((2, 16), "torch.int64") for name in ("input_ids", "position_ids", "labels")
    }


def test_mistakes():
    with pytest.raises(ValueError, match="sequence_length=1 must be at least 2"):
        list(pack([], 1))
    with pytest.raises(ValueError, match="hold 3 tokens in all, less than one row"):
        list(pack([np.arange(3, dtype=np.int32)], 8))
