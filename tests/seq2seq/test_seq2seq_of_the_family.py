"""Encoder-decoders of the family in the recipes: span corruption from new weights, pairs behind it, generation, trainers."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Seq2SeqTrainer, Seq2SeqTrainingArguments, pipeline

from hf_variants.analysis.flops import flops_per_token
from hf_variants.seq2seq import PairCollator, PairsSpec, Seq2SeqSpec, encode_pairs, seq2seq, write_texts
from hf_variants.training import pretrain
from hf_variants.training.models import build_config
from hf_variants.training.pretraining import flops_of_row_tokens
from hf_variants.training.span_corruption import sentinel_ids
from hf_variants.training.spec_parsing import build_spec, load_spec
from tests.tokenizers_for_tests import byte_level_bpe
from tests.training.runs import STEPS, quiet, spec_of, write_text

STACK = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
PAIR = {"encoder": STACK, "decoder": {**STACK, "qk_norm": "head"}, "tie_word_embeddings": True, "share_embeddings": True}
CORRUPTION = {"data": {"packing": "within_documents"}, "tokenizer": {"vocab_size": 340}, "span_corruption": {"sentinels": 20}}
RECORDS = [{"source": f"verse {a}: the {b}", "target": f"the {b} of {a}"} for a in range(10) for b in ("light", "sea", "day")]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", documents=6)


@pytest.fixture(scope="module")
def pretrained(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained") / "out"
    trainer = {"max_steps": 40, "eval_steps": 40, "save_steps": 40}
    result = pretrain(spec_of(text, folder, PAIR, objective="span_corruption", trainer=trainer, **CORRUPTION), quiet)
    return folder, result


def test_span_corruption_learns_from_new_weights(pretrained):
    folder, result = pretrained
    assert result["eval_perplexity"] < result["unigram_perplexity"]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.decoder_start_token_id == model.config.pad_token_id == tokenizer.pad_token_id
    assert model.config.encoder.vocab_size == model.config.decoder.vocab_size == len(tokenizer) > 256 + 22
    assert len(sentinel_ids(tokenizer, "<extra_id_{}>", 20)) == 20 and tokenizer.bos_token is None
    log = json.loads((folder / "training_log.json").read_text())
    assert any("mfu" in line for line in log)


def test_flops_of_a_row_are_those_of_both_stacks(text, tmp_path):
    spec = spec_of(text, tmp_path, PAIR, objective="span_corruption", **CORRUPTION)
    config = build_config(PAIR, byte_level_bpe())
    # 32 tokens are read, of rows of 34: 5 hidden in 2 spans
    encoder = flops_per_token(config.encoder, 32)
    read = sum(flops for part, flops in encoder.parts.items() if part != "lm_head") * 32
    written = flops_per_token(config.decoder, 8, encoder_length=32).total * 8
    assert flops_of_row_tokens(config, spec) == pytest.approx(3 * (read + written) / 34)


def test_keys_of_tokenizer_and_length_are_checked_before_any_work(text, tmp_path):
    bad = {
        "bos_token='<s>' has no effect": {"tokenizer": {"vocab_size": 340, "bos_token": "<s>"}},
        "vocab_size=270 must be at least 278": {"tokenizer": {"vocab_size": 270}},
        "span_corruption.sentinels=1 is less than the 2 spans": {"span_corruption": {"sentinels": 1}},
        "the encoder would have 128 tokens in a row": {"data": {"packing": "within_documents", "sequence_length": 128}},
    }
    for message, changes in bad.items():
        with pytest.raises(ValueError, match=message):
            pretrain(spec_of(text, tmp_path / "out", PAIR, objective="span_corruption", **{**CORRUPTION, **changes}), quiet)
    with pytest.raises(ValueError, match="objective='mlm' needs a model that sees both sides.*'encoder-decoder'"):
        pretrain(spec_of(text, tmp_path / "out", PAIR, objective="mlm"), quiet)
    assert not (tmp_path / "out").exists()


def test_token_ids_are_the_tokenizers_unless_written(text):
    tokenizer = byte_level_bpe()
    config = build_config({**PAIR, "pad_token_id": 7}, tokenizer)
    assert (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id) == (7, 0, 2)
    assert build_config({**PAIR, "decoder_start_token_id": 2}, tokenizer).decoder_start_token_id == 2
    small = {**PAIR, "decoder": {**STACK, "vocab_size": 9}}
    with pytest.raises(ValueError, match=r"model.decoder.vocab_size=9 is less than the tokenizer's \d+ tokens"):
        build_config(small, tokenizer)


def pairs_recipe(folder, output, **keys):
    folder.mkdir(exist_ok=True)
    source = folder / "pairs.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    data = {"source": str(source), "max_source_length": 32, "max_target_length": 32, "eval_fraction": 0.2}
    trainer = {**STEPS, "max_steps": 3, "per_device_train_batch_size": 8, "learning_rate": 1e-2}
    mapping = {"output_dir": str(output), "data": data, "trainer": trainer, "generation": {"max_new_tokens": 6}, **keys}
    return build_spec(Seq2SeqSpec, mapping)


def test_pairs_are_learned_behind_span_corruption_and_from_new_weights(pretrained, tmp_path):
    result = seq2seq(pairs_recipe(tmp_path / "a", tmp_path / "tuned", model_path=str(pretrained[0])), quiet)
    assert result["steps"] == 3 and np.isfinite(result["eval_loss"])
    new = seq2seq(pairs_recipe(tmp_path / "b", tmp_path / "new", model=PAIR, tokenizer={"vocab_size": 300}), quiet)
    assert new["parameters"] < result["parameters"]
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "new").config.model_type == "variants_seq2seq"


@pytest.mark.slow
def test_a_resumed_run_equals_one_that_was_not_stopped(tmp_path):
    model = {**PAIR, "decoder": {**STACK, "attention_dropout": 0.1}}
    trainer = {**STEPS, "max_steps": 4, "per_device_train_batch_size": 8, "eval_steps": 2, "save_steps": 2}
    trainer["lr_scheduler_type"] = "constant"
    keys = {"model": model, "tokenizer": {"vocab_size": 300}}
    whole = seq2seq(pairs_recipe(tmp_path / "a", tmp_path / "whole", trainer=trainer, **keys), quiet)
    first = pairs_recipe(tmp_path / "a", tmp_path / "parts", trainer={**trainer, "max_steps": 2}, **keys)
    seq2seq(first, quiet)
    first.trainer["max_steps"], first.allow_changes = 4, True
    again = seq2seq(first, quiet)
    assert again["eval_loss"] == whole["eval_loss"] and again["held_out"] == whole["held_out"]
    once, twice = (AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(once[name], twice[name]) for name in once)


def test_plain_trainer_pipeline_and_command_write_the_same(pretrained, tmp_path, capsys):
    from hf_variants import cli

    folder = str(pretrained[0])
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    sources = [record["source"] for record in RECORDS[:5]]
    expected = write_texts(model, tokenizer, sources, {"max_new_tokens": 6})
    rows = encode_pairs(RECORDS[:5], tokenizer, PairsSpec(), model.config.decoder_start_token_id)
    options = {"predict_with_generate": True, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    trainer = Seq2SeqTrainer(model, Seq2SeqTrainingArguments(tmp_path, **options), PairCollator(tokenizer.pad_token_id))
    found = trainer.predict(rows, max_new_tokens=6).predictions
    assert tokenizer.batch_decode(np.where(found < 0, tokenizer.pad_token_id, found), skip_special_tokens=True) == expected
    answers = pipeline("text-to-text", model=folder)(sources, max_new_tokens=6, batch_size=3)
    assert [answer[0]["generated_text"] for answer in answers] == expected
    with pytest.raises(SystemExit) as stop:
        words = ["generate", f"model_path={folder}", f"prompts={json.dumps(sources)}", "generation.max_new_tokens=6"]
        cli.main([*words, f"output={tmp_path / 'texts.json'}"])
    assert stop.value.code == 0
    assert [record["text"] for record in json.loads((tmp_path / "texts.json").read_text())] == expected


@pytest.mark.slow
def test_the_shipped_recipe_puts_together_what_it_never_saw(tmp_path):
    """A fifth of the shipped steps: the model of the recipe writes compositions that stand in no training pair."""
    steps = ["trainer.max_steps=260", "trainer.eval_steps=260", "trainer.save_steps=260", "trainer.disable_tqdm=true"]
    spec = load_spec(Seq2SeqSpec, "recipes/seq2seq.yaml", [f"output_dir={tmp_path}", "generated=0", *steps])
    result = seq2seq(spec, quiet)
    assert result["repeated"] == 0 and result["pairs"] == {"training": 12000, "held_out": 600}
    assert result["held_out"]["exact_match"] > 0.25 and result["held_out"]["chrf"] > 50
    assert len(result["by_group"]) == 24
