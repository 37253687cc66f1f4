"""Packed rows. B24: the first token of a document is never a target of the document before it; eos still is."""

import numpy as np
import pytest

from hf_variants.training.documents import documents_fingerprint
from hf_variants.training.packing import encode_documents, make_row, pack, packed_dataset
from hf_variants.training.specs import TokenizerSpec
from hf_variants.training.tokenizer import train_tokenizer
from hf_variants.training.trainer import collate_rows

TEXTS = ["In the beginning", "And the earth was without form, and void;", "Let there be light"] * 5


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, TokenizerSpec(vocab_size=280))


def test_one_row():
    row = make_row(np.array([0, 5, 6, 1, 0, 7, 1, 0]), np.array([1, 0, 0, 0, 1, 0, 0, 1], dtype=bool))
    assert row["input_ids"].tolist() == [0, 5, 6, 1, 0, 7, 1, 0]
    assert row["position_ids"].tolist() == [0, 1, 2, 3, 0, 1, 2, 0]
    assert row["labels"].tolist() == [-100, 5, 6, 1, -100, 7, 1, -100]


def test_b24_packing_boundaries(tokenizer):
    documents = list(encode_documents(TEXTS, tokenizer))
    rows = list(pack(documents, 16))
    stream, bos, eos = np.concatenate(documents), tokenizer.bos_token_id, tokenizer.eos_token_id
    packed = np.concatenate([row["input_ids"] for row in rows])
    labels = np.concatenate([row["labels"] for row in rows])
    positions = np.concatenate([row["position_ids"] for row in rows])
    assert len(rows) == len(stream) // 16
    assert (packed == stream[: len(packed)]).all()
    assert (labels[packed == bos] == -100).all() and (positions[packed == bos] == 0).all()
    assert (labels[packed == eos] == eos).all()
    assert (labels[packed != bos] == packed[packed != bos]).all()
    assert all(row["position_ids"][0] == 0 for row in rows)


def test_documents_begin_with_bos_and_end_with_eos(tokenizer):
    for text, ids in zip(TEXTS, encode_documents(TEXTS, tokenizer), strict=True):
        assert ids[0] == tokenizer.bos_token_id and ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(ids[1:-1]) == text


def test_cache_is_read_again_and_its_key_sees_every_input(tokenizer, tmp_path):
    print_of = documents_fingerprint(TEXTS)
    first = packed_dataset(TEXTS, tokenizer, 16, tmp_path, print_of)
    again = packed_dataset(None, tokenizer, 16, tmp_path, print_of)  # reads no text
    assert len(list(tmp_path.iterdir())) == 1
    assert (first[:]["input_ids"] == again[:]["input_ids"]).all()
    packed_dataset(TEXTS, tokenizer, 8, tmp_path, print_of)
    packed_dataset(TEXTS[:9], tokenizer, 16, tmp_path, documents_fingerprint(TEXTS[:9]))
    packed_dataset(TEXTS, train_tokenizer(TEXTS, TokenizerSpec(vocab_size=270)), 16, tmp_path, print_of)
    assert len(list(tmp_path.iterdir())) == 4


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
