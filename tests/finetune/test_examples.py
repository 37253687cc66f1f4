"""Examples are checked one by one before any training: wrong fields, roles, labels, lengths and splits are named."""

import pytest

from hf_variants.finetune.examples import read_examples
from hf_variants.finetune.specs import ExamplesSpec, FinetuneSpec, check_keys
from hf_variants.finetune.tokenizers import PLAIN_TEMPLATE, keep_short, token_counts
from hf_variants.training import build_spec
from tests.finetune.tiny import chat, records, write_records
from tests.tokenizers_for_tests import byte_level_bpe

GOOD = chat("sun", "sun")
BAD = [
    ("supervised", [{"text": "a"}], r"holds the fields \['text'\]; task='supervised' needs messages or prompt \+ completion"),
    ("supervised", [GOOD, {"messages": []}], "record 2: messages: it is an empty list"),
    ("supervised", [GOOD, {"messages": [{"role": "user", "content": "a"}]}], "record 2: messages: no message of the role"),
    ("supervised", [{"messages": [{"role": "user"}]}], "record 1: messages: message 0 has no content"),
    ("supervised", [{"prompt": "a", "completion": ""}], "record 1: completion='' must be a text or a list of messages"),
    ("preference", [{"prompt": "a", "chosen": "b", "rejected": "b"}], "chosen and rejected are equal"),
    ("preference", [{"prompt": "a", "completion": "b"}], r"needs prompt \+ chosen \+ rejected"),
    ("classification", [{"text": "a", "label": 0.5}], "record 1: label=0.5 must be a text or a whole number"),
    ("classification", [{"text": " ", "label": 1}], "record 1: text=' ' must be a text"),
]


def spec_of(path, **keys):
    return build_spec(ExamplesSpec, {"source": str(path), **keys})


@pytest.mark.parametrize(("task", "rows", "message"), BAD)
def test_misfits_are_named(tmp_path, task, rows, message):
    path = write_records(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ValueError, match=message):
        read_examples(spec_of(path), task)


def test_broken_files_are_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    for content, message in (
        (b'{"a": 1}\n{"a": \n', "line 2 is not JSON"),
        (b"[1]\n", "line 1 holds a list"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (b"", "holds no record"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_examples(spec_of(path), "supervised")
    with pytest.raises(ValueError, match="is not a file"):
        read_examples(spec_of(tmp_path / "absent.jsonl"), "supervised")
    with pytest.raises(ValueError, match="data.source is empty"):
        read_examples(ExamplesSpec(), "supervised")


def test_the_split_is_whole_seeded_and_required(tmp_path):
    path = write_records(tmp_path / "rows.jsonl", [{"text": f"text {n}", "label": n % 2} for n in range(20)])
    first, second = (read_examples(spec_of(path, eval_fraction=0.2), "classification") for _ in range(2))
    texts = {row["text"] for row in first.train}, {row["text"] for row in first.eval}
    assert len(texts[0]) == 16 and len(texts[1]) == 4 and not texts[0] & texts[1]
    assert list(second.eval) == list(first.eval) and second.fingerprint == first.fingerprint
    other = read_examples(spec_of(path, eval_fraction=0.2, split_seed=1), "classification")
    assert list(other.eval) != list(first.eval) and other.fingerprint != first.fingerprint
    with pytest.raises(ValueError, match="data.eval_fraction=0.0 must lie between 0 and 1: a run is judged on held-out"):
        read_examples(spec_of(path, eval_fraction=0.0), "classification")
    with pytest.raises(ValueError, match="leaves none to train on"):
        read_examples(spec_of(path, max_examples=1, eval_fraction=0.9), "classification")


@pytest.mark.parametrize("form", ["csv", "parquet", "json"])
def test_other_formats_read_the_same(tmp_path, form):
    from datasets import Dataset

    rows = records("classification")
    path = write_records(tmp_path / "rows.jsonl", rows)
    other = tmp_path / f"rows.{form}"
    getattr(Dataset.from_list(rows), f"to_{form}")(str(other))
    expected, found = (read_examples(spec_of(source), "classification") for source in (path, other))
    assert list(found.eval) == list(expected.eval)


def test_too_long_examples_are_counted_and_never_cut_unasked(tmp_path):
    from datasets import Dataset

    tokenizer = byte_level_bpe()
    tokenizer.chat_template = PLAIN_TEMPLATE.read_text()
    rows = Dataset.from_list([chat("sun", "a"), chat("sun", "a b c d e f g h")])
    spec = build_spec(FinetuneSpec, {"output_dir": "x", "model_path": "y"})
    counts = token_counts(rows, tokenizer, spec)
    spec.data.sequence_length = counts[0]
    with pytest.raises(ValueError, match=f"1 of 2 train examples have more tokens .* up to {counts[1]}"):
        keep_short(rows, counts, spec, "train")
    spec.data.over_long = "drop"
    kept, longer = keep_short(rows, counts, spec, "train")
    assert list(kept) == list(rows)[:1] and longer == 1
    spec.data.over_long = "truncate"
    assert keep_short(rows, counts, spec, "train") == (rows, 1)


@pytest.mark.parametrize("task", ["supervised", "preference", "classification"])
def test_counted_tokens_are_those_the_trainer_sees(tmp_path, task):
    """An example of exactly the length is kept whole; with one token less room it is too long."""
    from datasets import Dataset

    tokenizer = byte_level_bpe()
    rows = Dataset.from_list(records(task)[:1])
    if task == "supervised":
        rows = Dataset.from_list([{"prompt": "Say sun:", "completion": " sun"}])
    spec = build_spec(FinetuneSpec, {"output_dir": "x", "model_path": "y", "task": task})
    text = {"supervised": "Say sun: sun", "preference": "Say sun: sun it is", "classification": "here is the sun"}[task]
    ends = 0 if task == "classification" else 1
    assert token_counts(rows, tokenizer, spec) == [len(tokenizer(text)["input_ids"]) + ends]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"task": "classification", "loss_on": "all"}, "loss_on='all' has no effect with task='classification'"),
        ({"data": {"label_key": "kind"}}, "data.label_key='kind' has no effect with task='supervised'"),
        ({"adapter": {"r": 4}}, "adapter.r=4 has no effect with method='full'"),
        ({"method": "lora", "adapter": {"r": 0}}, "adapter.r=0 must be at least 1"),
        ({"data": {"sequence_length": 1}}, "data.sequence_length=1 must be at least 2"),
    ],
)
def test_keys_without_effect_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        check_keys(build_spec(FinetuneSpec, {"output_dir": "x", "model_path": "y", **keys}))
