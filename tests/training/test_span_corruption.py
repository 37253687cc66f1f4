"""Span corruption: lengths and examples known from T5, statistics of what is hidden, sentinels, and runs of the recipe."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from hf_variants.training import pretrain
from hf_variants.training.packing import PackingStats, pack_blocks
from hf_variants.training.span_corruption import (
    CorruptedRows,
    add_sentinels,
    corruption_for,
    corruption_of,
    hidden_tokens,
    sentinel_ids,
    sentinel_names,
)
from hf_variants.training.specs import TokenizerSpec
from hf_variants.training.tokenizer import train_tokenizer
from tests.tokenizers_for_tests import byte_level_bpe
from tests.training.runs import MODEL, quiet, spec_of, write_text

SENTINELS, EOS, PAD = tuple(range(900, 1000)), 1, 0
NATIVE = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
ROWS = {"packing": "within_documents", "sequence_length": 24}


def collator(inputs=64, density=0.15, mean=3.0, **keys):
    return CorruptedRows(SENTINELS, EOS, PAD, corruption_for(inputs, density, mean), density, mean, **keys)


def rows_of(made, count, seed=0):
    draw = np.random.default_rng(seed)
    return [{"input_ids": torch.from_numpy(draw.integers(2, 900, made.corruption.row))} for _ in range(count)]


def restored(read, written):
    """The row again, from both sides: each sentinel of the encoder's is replaced by what follows it in the decoder's."""
    spans, ids = {}, []
    for token in written[:-1]:
        spans.setdefault(token, []) if token in SENTINELS else spans[list(spans)[-1]].append(token)
    for token in read[:-1]:
        ids += spans.pop(token) if token in SENTINELS else [token]
    assert read[-1] == written[-1] == EOS and not spans
    return ids


@pytest.mark.parametrize(
    ("inputs", "density", "mean", "row", "targets"),
    [(512, 0.15, 3.0, 568, 114), (1024, 0.15, 3.0, 1137, 229)],
)
def test_lengths_are_those_of_t5(inputs, density, mean, row, targets):
    found = corruption_for(inputs, density, mean)
    assert (found.row, found.inputs, found.targets) == (row, inputs, targets)


def test_every_length_of_an_encoder_is_met_exactly_by_its_longest_row():
    for density, mean in ((0.15, 3.0), (0.5, 3.0), (0.15, 1.0), (0.3, 8.0), (0.02, 10.0)):
        for inputs in range(8, 200):
            found = corruption_for(inputs, density, mean)
            assert found.inputs == inputs < corruption_of(found.row + 1, density, mean).inputs + 1
            assert found.inputs + found.targets == found.row + 2 * found.spans + 2


def test_a_known_cut():
    ids, made = np.arange(10, 20), collator()
    hidden = np.array([0, 0, 1, 1, 0, 0, 0, 0, 1, 1], dtype=bool)
    assert made._side(ids, hidden).tolist() == [10, 11, 900, 14, 15, 16, 17, 901, EOS]
    assert made._side(ids, ~hidden).tolist() == [900, 12, 13, 901, 18, 19, EOS]


def test_both_sides_hold_the_row_and_fill_their_lengths():
    made = collator(64)
    rows = rows_of(made, 50)
    batch = made(rows)
    assert batch["input_ids"].shape == (50, 64) and batch["attention_mask"].all()
    assert batch["labels"].shape == (50, made.corruption.targets) and (batch["labels"] != -100).all()
    for row, read, written in zip(rows, batch["input_ids"], batch["labels"], strict=True):
        assert restored(read.tolist(), written.tolist()) == row["input_ids"].tolist()
        used = [token for token in read.tolist() if token in SENTINELS]
        assert used == list(SENTINELS[: made.corruption.spans])  # in order, each once
        assert read[0] < 900  # the beginning of a row is never hidden


def test_what_is_hidden_has_the_asked_share_length_and_is_spread_evenly():
    lengths = corruption_for(512, 0.15, 3.0)
    hidden = np.stack([hidden_tokens(lengths, np.random.default_rng(seed)) for seed in range(2000)])
    assert (hidden.sum(1) == lengths.hidden).all()
    begins = hidden & ~np.pad(hidden, ((0, 0), (1, 0)))[:, :-1]
    assert (begins.sum(1) == lengths.spans).all()
    assert abs(lengths.hidden / lengths.row - 0.15) < 0.002 and abs(lengths.hidden / lengths.spans - 3) < 0.1
    inner = hidden.mean(0)[20:-20]
    assert abs(inner.mean() - 0.15) < 0.006 and inner.min() > 0.1 and inner.max() < 0.2
    spans = np.diff(np.flatnonzero(np.diff(np.pad(hidden[0], 1).astype(int))))[::2]
    assert spans.sum() == lengths.hidden and len(set(spans.tolist())) > 2  # of different lengths


def test_spans_follow_from_row_epoch_and_seed_alone():
    made = collator(64, seed=1)
    rows = rows_of(made, 6)
    batch, alone = made(rows), made(rows[2:3])
    assert all(torch.equal(batch[name][2:3], alone[name]) for name in batch)
    other = collator(64, seed=2)(rows)["input_ids"]
    made.epoch = 1
    again = made(rows)["input_ids"]
    assert not torch.equal(again, batch["input_ids"]) and not torch.equal(other, batch["input_ids"])


def test_short_rows_are_padded_behind_their_end():
    made = collator(64)
    for length in (2, 3, 17, made.corruption.row):
        ids = torch.full((made.corruption.row,), PAD)
        ids[:length] = torch.arange(5, 5 + length)
        batch = made([{"input_ids": ids, "attention_mask": (torch.arange(len(ids)) < length).int()}])
        read = batch["input_ids"][0][batch["attention_mask"][0].bool()].tolist()
        written = batch["labels"][0][batch["labels"][0] != -100].tolist()
        assert restored(read, written) == list(range(5, 5 + length))
        lengths = corruption_of(length, 0.15, 3.0)
        assert (len(read), len(written)) == (lengths.inputs, lengths.targets) and lengths.hidden >= 1
        assert (batch["input_ids"][0][batch["attention_mask"][0] == 0] == PAD).all()


def test_one_document_in_each_row():
    documents = [np.arange(5, 9), np.arange(10, 27), np.arange(30, 32)]
    stats = PackingStats()
    (block,) = pack_blocks(documents, 8, "per_document", pad_id=0, stats=stats)
    pieces = [ids[: lengths[0]].tolist() for ids, lengths in zip(block.ids, block.lengths, strict=True)]
    assert pieces == [[5, 6, 7, 8], list(range(10, 18)), list(range(18, 26)), [30, 31]]
    assert all(len(lengths) == 1 for lengths in block.lengths)
    assert (stats.rows, stats.documents_cut, stats.tokens_dropped) == (4, 1, 1)  # the piece [26] teaches nothing
    assert stats.padding == (block.ids == 0).sum() == 10


def test_sentinels_of_trained_and_given_tokenizers():
    names = sentinel_names("<extra_id_{}>", 5)
    trained = train_tokenizer(["some words of text"] * 3, TokenizerSpec(vocab_size=300), "span_corruption", names)
    with pytest.raises(ValueError, match="tokenizer.bos_token='<s>' has no effect with an encoder-decoder"):
        train_tokenizer(["text"], TokenizerSpec(bos_token="<s>"), "span_corruption", names)
    with pytest.raises(ValueError, match="vocab_size=260 must be at least 263 .256 bytes and 7 special tokens."):
        train_tokenizer(["text"], TokenizerSpec(vocab_size=260), "span_corruption", names)
    assert trained.bos_token is None and trained("of")["input_ids"][-1] == trained.eos_token_id
    assert trained.convert_ids_to_tokens(sentinel_ids(trained, "<extra_id_{}>", 5)) == names
    assert trained("a <extra_id_3> b")["input_ids"].count(trained.convert_tokens_to_ids("<extra_id_3>")) == 1
    given = byte_level_bpe()
    with pytest.raises(ValueError, match="needs 3 sentinels, .* and the tokenizer has 0 of span_corruption.sentinel='<x_{}>'"):
        sentinel_ids(given, "<x_{}>", 3)
    size = len(given)
    assert add_sentinels(given, sentinel_names("<x_{}>", 3)) == 3 and add_sentinels(given, ["<x_1>"]) == 0
    assert sentinel_ids(given, "<x_{}>", 3) == (size, size + 1, size + 2)
    assert given.decode([size, size + 1], skip_special_tokens=True) == ""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", documents=8)


@pytest.fixture(scope="module")
def native(text, tmp_path_factory):
    """A tiny native T5 with a tokenizer of 30 sentinels, on disk."""
    folder = tmp_path_factory.mktemp("native")
    texts = open(text).read().split("\n\n")
    spec = TokenizerSpec(vocab_size=330)
    tokenizer = train_tokenizer(texts, spec, "span_corruption", sentinel_names("<extra_id_{}>", 30))
    torch.manual_seed(0)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), **NATIVE, **ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def recipe(text, folder, model_path, data=None, **keys):
    trainer = {"max_steps": 10, **keys.pop("trainer", {})}
    parts = {"data": {**ROWS, **(data or {})}, "trainer": trainer, "objective": "span_corruption"}
    return spec_of(text, folder, None, model_path=model_path, **parts, **keys)


def log_of(folder):
    return json.loads((folder / "training_log.json").read_text())


@pytest.mark.slow
def test_a_run_goes_on_bitwise_and_hides_other_spans_at_every_epoch(text, native, tmp_path):
    steps = {"per_device_train_batch_size": 32, "eval_steps": 5, "save_steps": 5, "lr_scheduler_type": "constant"}
    whole = recipe(text, tmp_path / "whole", native, trainer={**steps, "max_steps": 8})
    result = pretrain(whole, quiet)
    assert result["steps"] == 8 and log_of(tmp_path / "whole")[-1]["epoch"] > 1  # spans were drawn anew
    parts = recipe(text, tmp_path / "parts", native, trainer={**steps, "max_steps": 5})
    pretrain(parts, quiet)
    parts.trainer["max_steps"], parts.allow_changes = 8, True
    assert pretrain(parts, quiet)["eval_loss"] == result["eval_loss"]
    once, twice = (T5ForConditionalGeneration.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(once[name], twice[name]) for name in once)
    losses = [line["loss"] for line in log_of(tmp_path / "whole") if "loss" in line]
    assert losses[-1] < losses[0] and np.isfinite(result["unigram_perplexity"])
    assert len(sentinel_ids(AutoTokenizer.from_pretrained(tmp_path / "whole"), "<extra_id_{}>", 30)) == 30


def test_held_out_rows_hide_the_same_at_every_evaluation(text, native, tmp_path):
    """A rate of zero changes no weight, so that the held-out loss may not change either, however many epochs have gone by."""
    trainer = {"per_device_train_batch_size": 32, "eval_steps": 3, "learning_rate": 0.0, "max_steps": 9, "eval_on_start": True}
    pretrain(recipe(text, tmp_path / "out", native, trainer=trainer), quiet)
    log = log_of(tmp_path / "out")
    losses = {line["eval_loss"] for line in log if "eval_loss" in line}
    assert log[-1]["epoch"] > 1 and len(losses) == 1


BAD = {
    "a decoder": ({"model": MODEL}, "needs an encoder-decoder: give model.encoder and model.decoder; .*'decoder'"),
    "an encoder": ({"model": {**MODEL, "is_causal": False}}, "needs an encoder-decoder.*'encoder'"),
    "several documents in a row": ({"data": {"packing": "best_fit"}}, "data.packing='best_fit' puts several documents"),
    "no density": ({"span_corruption": {"noise_density": 0.0}}, "noise_density=0.0 must lie between 0 and 1"),
    "no length": ({"span_corruption": {"mean_span_length": 0.5}}, "mean_span_length=0.5 must be at least 1"),
    "no room": ({"span_corruption": {"noise_density": 0.8, "mean_span_length": 1.0}}, "leaves 0.25 tokens between two spans"),
    "short rows": ({"data": {"sequence_length": 3}}, "data.sequence_length=3 must be at least 4"),
    "too few sentinels": ({"data": {"sequence_length": 700}}, "needs 39 sentinels, .* and the tokenizer has 30"),
    "a name without a number": ({"span_corruption": {"sentinel": "<extra>"}}, "must hold {} once"),
    "another objective": (
        {"model": MODEL, "objective": "clm", "span_corruption": {"noise_density": 0.3}},
        "span_corruption.noise_density=0.3 has no effect with objective='clm'",
    ),
    "a decoder's samples": ({"samples": {"prompts": ["a"]}}, "samples.prompts are continued by causal models only"),
    "a decoder's metrics": ({"metrics": {"perplexity": {}}}, "metrics=.'perplexity'. measure causal models"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes(text, native, tmp_path, name):
    changes, message = BAD[name]
    keys = {"model_path": None if "model" in changes else native, "data": {}, "objective": "span_corruption", **changes}
    keys["data"] = {**ROWS, **keys["data"]}
    with pytest.raises(ValueError, match=message):
        pretrain(spec_of(text, tmp_path / "out", keys.pop("model", None), **keys), quiet)
    assert not (tmp_path / "out" / "config.json").exists()


def test_an_encoder_decoder_is_refused_for_other_objectives(text, native, tmp_path):
    with pytest.raises(ValueError, match="objective='clm' needs a causal model.*'encoder-decoder'"):
        pretrain(spec_of(text, tmp_path / "out", None, model_path=native), quiet)
