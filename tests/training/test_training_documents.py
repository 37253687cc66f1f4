"""Reading documents from text, JSON lines and `datasets`; held-out documents are whole."""

import json

import pytest

from hf_variants.training.documents import (
    documents_fingerprint,
    documents_of,
    read_documents,
    split_documents,
    train_and_eval_documents,
)
from hf_variants.training.specs import DataSpec

TEXTS = [f"document {index}\n" + "word " * (10 + index) + "\n" for index in range(20)]


def test_text_file_is_cut_at_blank_lines(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("\n\n" + "\n  \n".join(TEXTS))
    assert list(read_documents(DataSpec(source=str(file)))) == TEXTS
    assert list(read_documents(DataSpec(source=str(file), max_documents=3))) == TEXTS[:3]


def test_sources_agree(tmp_path):
    from datasets import Dataset

    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in TEXTS[:8]))
    (tmp_path / "lines" / "b.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in TEXTS[8:]))
    Dataset.from_list([{"body": text} for text in TEXTS]).save_to_disk(str(tmp_path / "arrow"))
    for source in ("lines", "lines/*.jsonl", "arrow"):
        assert list(read_documents(DataSpec(source=str(tmp_path / source), text_key="body"))) == TEXTS


def test_held_out_documents_are_whole_and_within_the_share():
    train, held_out = split_documents(TEXTS, 0.2, seed=0)
    assert sorted(train + held_out) == sorted(TEXTS)
    assert not set(train) & set(held_out)
    assert 0 < sum(map(len, held_out)) <= 0.2 * sum(map(len, TEXTS))
    assert split_documents(TEXTS, 0.2, seed=0) == (train, held_out)
    assert split_documents(TEXTS, 0.2, seed=1)[1] != held_out


def test_separate_source_and_parts(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS))
    (tmp_path / "b.txt").write_text("held out\n")
    spec = DataSpec(source=str(tmp_path / "a.txt"), eval_source=str(tmp_path / "b.txt"))
    train, held_out = train_and_eval_documents(spec)
    assert len(train) == 20 and held_out == ["held out\n"]
    assert documents_of(spec, "eval") == held_out and documents_of(spec, "all") == train


def test_fingerprint_sees_text_and_borders():
    assert documents_fingerprint(["ab", "c"]) != documents_fingerprint(["a", "bc"])
    assert documents_fingerprint(iter(TEXTS)) == documents_fingerprint(TEXTS)


def test_mistakes(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "bad.jsonl").write_text('{"body": "x"}\n{')
    cases = [
        (DataSpec(), "data.source is empty"),
        (DataSpec(source=str(tmp_path / "absent.txt")), "is not a file"),
        (DataSpec(source=str(tmp_path / "*.none")), "matches no file"),
        (DataSpec(source=str(tmp_path / "empty.txt")), "holds no document"),
        (DataSpec(source=str(tmp_path / "bad.jsonl"), text_key="body"), "line 2: not JSON"),
        (DataSpec(source=str(tmp_path / "bad.jsonl")), r"no field data.text_key='text'; it holds \['body'\]"),
        (DataSpec(source="no-such-dataset-here"), "`datasets` cannot load it"),
    ]
    for spec, message in cases:
        with pytest.raises(ValueError, match=message):
            list(read_documents(spec))
    with pytest.raises(ValueError, match="single document"):
        split_documents(["one"], 0.1, 0)
    with pytest.raises(ValueError, match="eval_fraction=1.5"):
        split_documents(TEXTS, 1.5, 0)
