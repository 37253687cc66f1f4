"""The `evaluate` modules of the package, offline, against counts by hand; and the callback that runs them in training."""

import json
import math
from importlib.util import find_spec

import pytest
import torch

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.evaluation.passkey import passkey_retrieval, passkey_text
from hf_variants.evaluation.perplexity import corpus_perplexity
from hf_variants.metrics import load_metric, metric_names
from hf_variants.training import pretrain
from hf_variants.training.specs import TokenizerSpec
from hf_variants.training.tokenizer import train_tokenizer
from tests.training.runs import MODEL, quiet, spec_of, write_text

TEXTS = ["In the beginning God created the heaven and the earth.", "你好，世界 and some words.", "short"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 3, TokenizerSpec(vocab_size=290))


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    return VariantsForCausalLM(VariantsConfig(vocab_size=len(tokenizer), **{**MODEL, "max_position_embeddings": 512})).eval()


def computed(name, tmp_path, **inputs):
    return load_metric(name, experiment_id="test", cache_dir=str(tmp_path)).compute(**inputs)


def test_every_module_loads_offline_and_says_what_it_needs(tmp_path):
    names = {"bits_per_byte", "expert_balance", "passkey", "perplexity"}
    assert names <= set(metric_names())
    for name in names:
        with pytest.raises(ValueError, match=f"{name} needs model_id, or both"):
            computed(name, tmp_path, predictions=[64] if name == "passkey" else TEXTS)


def test_perplexity_by_document_and_position(model, tokenizer, tmp_path):
    parts = {"model": model, "tokenizer": tokenizer, "window": 16}
    scores = computed("perplexity", tmp_path, predictions=TEXTS, per_document=True, position_buckets=4, **parts)
    for text, row in zip(TEXTS, scores["documents"], strict=True):
        alone = corpus_perplexity(model, tokenizer, [text], window=16)
        assert row["perplexity"] == pytest.approx(alone.perplexity, rel=1e-5)
        assert (row["tokens"], row["num_bytes"]) == (alone.tokens, alone.num_bytes)
        assert row["bits_per_byte"] == pytest.approx(alone.bits_per_byte, rel=1e-5)
    nll = sum(row["loss"] * row["tokens"] for row in scores["documents"])
    assert scores["perplexity"] == pytest.approx(math.exp(nll / scores["tokens"]))
    assert sum(bucket["tokens"] for bucket in scores["by_position"]) == scores["tokens"]


def test_bits_per_byte(model, tokenizer, tmp_path):
    scores = computed("bits_per_byte", tmp_path, predictions=TEXTS, model=model, tokenizer=tokenizer)
    expected = corpus_perplexity(model, tokenizer, TEXTS)
    assert scores["bits_per_byte"] == expected.bits_per_byte and scores["num_bytes"] == sum(len(t.encode()) for t in TEXTS)


class Oracle(torch.nn.Module):
    """Repeats the digits that followed the first "pass key is" within its sight of `window` tokens, else says nothing."""

    def __init__(self, tokenizer, window):
        super().__init__()
        self.config = type("Config", (), {"max_position_embeddings": 4096})()
        self.tokenizer, self.window = tokenizer, window
        self.weight = torch.nn.Parameter(torch.zeros(1))

    device = property(lambda self: self.weight.device)

    def forward(self, input_ids, use_cache=None, logits_to_keep=0):
        ids = input_ids[0].tolist()
        logits = torch.zeros(1, logits_to_keep, len(self.tokenizer))
        for column, end in enumerate(range(len(ids) - logits_to_keep + 1, len(ids) + 1)):
            seen = self.tokenizer.decode(ids[max(0, end - self.window) : end])
            before, _, after = seen.partition("The pass key is ")
            said = seen.rsplit("What is the pass key? The pass key is", 1)[-1]
            key = " " + after[:5]
            if after and key.startswith(said) and len(said) < len(key):
                rest = self.tokenizer(key[len(said) :], add_special_tokens=False)["input_ids"]
                logits[0, column, rest[0]] = 20.0
        return type("Output", (), {"logits": logits})()


def test_passkey_is_found_within_sight_only(tokenizer, tmp_path):
    whole = passkey_retrieval(Oracle(tokenizer, 10_000), tokenizer, [400, 800], depths=(0.0, 0.5, 1.0))
    assert [row["accuracy"] for row in whole] == [1.0, 1.0] and whole[0]["key_loss"] < 0.01
    near = passkey_retrieval(Oracle(tokenizer, 420), tokenizer, [400, 1200], depths=(0.0, 1.0))
    assert near[0]["accuracy"] == 1.0
    assert [row["accuracy"] for row in near[1]["depths"]] == [0.0, 1.0]
    scores = computed("passkey", tmp_path, predictions=[400], model=Oracle(tokenizer, 10_000), tokenizer=tokenizer)
    assert scores["accuracy"] == 1.0 and scores["lengths"][0]["length"] == 400
    ids, number = passkey_text(tokenizer, 500, 0.3, "12345")
    assert len(ids) == 500 and tokenizer.decode(ids[-number:]).strip() == "12345"
    with pytest.raises(ValueError, match="lengths holds 20, less than the"):
        passkey_text(tokenizer, 20, 0.3, "12345")
    with pytest.raises(ValueError, match="lengths holds 5000, beyond max_position_embeddings=4096"):
        passkey_retrieval(Oracle(tokenizer, 10), tokenizer, [5000])


def test_passkey_equals_greedy_generation(model, tokenizer):
    from random import Random

    (row,) = passkey_retrieval(model, tokenizer, [300], depths=(0.5,), trials=1, digits=2)
    draw = Random("0 300")
    key = "".join(draw.choice("123456789") for _ in range(2))
    ids, number = passkey_text(tokenizer, 300, 0.5, key)
    prompt = torch.tensor([ids[:-number]])
    said = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=number, do_sample=False)
    assert row["accuracy"] == float(said[0, -number:].tolist() == ids[-number:])


def test_expert_balance(model, tokenizer, tmp_path):
    parts = {"model": model, "tokenizer": tokenizer, "predictions": TEXTS}
    router = model.model.layers[1].mlp.gate
    bias = router.e_score_correction_bias.clone()
    even = computed("expert_balance", tmp_path, **parts)
    assert even["tokens"] == sum(len(tokenizer(text)["input_ids"]) for text in TEXTS)
    (layer,) = even["layers"]
    assert layer["layer"] == 1 and sum(layer["load"]) == pytest.approx(1) and even["entropy"] <= 1
    router.e_score_correction_bias[:] = torch.tensor([9.0, 9.0, 0.0, 0.0])
    collapsed = computed("expert_balance", tmp_path, **parts)
    router.e_score_correction_bias[:] = bias
    assert collapsed["layers"][0]["load"] == [0.5, 0.5, 0.0, 0.0]
    assert (collapsed["max_violation"], collapsed["unused"]) == (1.0, 0.5)
    assert collapsed["entropy"] == pytest.approx(0.5)
    dense = VariantsForCausalLM(VariantsConfig(vocab_size=290, hidden_size=16, num_attention_heads=2, num_hidden_layers=1))
    with pytest.raises(ValueError, match="has no routed experts"):
        computed("expert_balance", tmp_path, **{**parts, "model": dense})


def test_metrics_in_training(tmp_path):
    text = write_text(tmp_path / "text.txt", documents=8)
    metrics = {
        "bits_per_byte": {"window": 16},
        "perplexity": {},
        "passkey": {"lengths": [220], "trials": 1},
        "expert_balance": {},
    }
    model = {**MODEL, "max_position_embeddings": 256, "hidden_dropout": 0.1}
    plain = pretrain(spec_of(text, tmp_path / "plain", model), quiet)
    measured = pretrain(spec_of(text, tmp_path / "out", model, metrics=metrics), quiet)
    assert measured["eval_loss"] == plain["eval_loss"]  # the run is the same
    log = json.loads((tmp_path / "out" / "training_log.json").read_text())
    lines = [line for line in log if "metric/bits_per_byte/bits_per_byte" in line]
    assert [line["step"] for line in lines][:2] == [5, 10]
    assert lines[1]["metric/perplexity/perplexity"] < lines[0]["metric/perplexity/perplexity"]
    assert {"metric/passkey/accuracy_220", "metric/expert_balance/max_violation"} <= set(lines[0])


BAD = {
    "a misspelt name": ({"bit_per_byte": {}}, "unknown key 'metrics.bit_per_byte' .did you mean 'bits_per_byte'"),
    "a misspelt option": ({"perplexity": {"windw": 3}}, "'metrics.perplexity.windw' .did you mean 'window'"),
    "no section": ({"perplexity": 3}, "must be a section"),
    "no lengths": ({"passkey": {}}, "metrics.passkey.lengths is missing"),
    "no tasks": ({"lm_eval": {}}, "metrics.lm_eval.tasks is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes(tmp_path, name):
    metrics, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        pretrain(spec_of(write_text(tmp_path / "a.txt", 4), tmp_path / "out", metrics=metrics), quiet)


@pytest.mark.skipif(find_spec("lm_eval") is not None, reason="lm-eval is installed")
def test_the_harness_is_asked_for_before_training(tmp_path):
    with pytest.raises(ValueError, match="pip install lm-eval"):
        pretrain(spec_of(write_text(tmp_path / "a.txt", 4), tmp_path / "out", metrics={"lm_eval": {"tasks": ["x"]}}), quiet)


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed")
def test_a_task_of_the_harness(tmp_path, model, tokenizer):
    from hf_variants.training.metrics_callback import measure

    rows = [{"question": f"verse {n}", "good": " was good", "bad": " was bad"} for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    task = {
        "task": "verses", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_target": 0,
        "doc_to_choice": ["{{good}}", "{{bad}}"], "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    (tmp_path / "verses.yaml").write_text(json.dumps(task))  # JSON is YAML
    scores = measure("lm_eval", {"tasks": ["verses"], "include_path": str(tmp_path)}, model, tokenizer, TEXTS)
    assert 0 <= scores["verses/acc"] <= 1
