"""The choices of a pretraining recipe: objectives, optimizers, schedules, samples, trackers, sources."""

import gzip
import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_variants.training import pretrain
from hf_variants.training.documents import read_corpus
from hf_variants.training.muon import MuonWithAdamW, hidden_matrices
from hf_variants.training.objectives import MaskedRows
from hf_variants.training.peak_flops import data_sheet
from hf_variants.training.specs import DataSpec, SourceSpec
from hf_variants.training.trainer import with_decay_steps
from tests.training.runs import MODEL, quiet, spec_of, write_text

DENSE = {key: MODEL[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings")}
DENSE["num_hidden_layers"] = 1


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", documents=8)


def log_of(directory):
    return json.loads((directory / "training_log.json").read_text())


def test_muon_trains_hidden_matrices_and_resumes(text, tmp_path):
    spec = spec_of(text, tmp_path / "out", MODEL, optimizer="muon", muon={"ns_steps": 3}, trainer={"max_steps": 6})
    lines = []
    result = pretrain(spec, lines.append)
    losses = [line["loss"] for line in log_of(tmp_path / "out") if "loss" in line]
    assert losses[-1] < losses[0] and result["steps"] == 6
    spec.trainer["max_steps"], spec.allow_changes = 8, True
    assert pretrain(spec, quiet)["steps"] == 8


def test_muon_is_torchs_on_the_hidden_matrices_alone():
    from hf_variants import VariantsConfig, VariantsForCausalLM
    from hf_variants.training.muon import muon_optimizer
    from hf_variants.training.trainer import decay_parameter_names

    class Arguments:
        learning_rate, weight_decay, adam_beta1, adam_beta2, adam_epsilon = 0.02, 0.1, 0.9, 0.95, 1e-8

    model = VariantsForCausalLM(VariantsConfig(vocab_size=50, **MODEL))
    names = hidden_matrices(model)
    assert "model.layers.0.self_attn.q_proj.weight" in names and "model.layers.0.mlp.down_proj.weight" in names
    assert not [name for name in names if "embed" in name or "lm_head" in name or "gate.weight" in name or "experts" in name]
    optimizer = muon_optimizer(model, decay_parameter_names(model), Arguments, {})
    assert isinstance(optimizer, MuonWithAdamW)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    q = model.model.layers[0].self_attn.q_proj.weight
    alone = q.detach().clone().requires_grad_()
    reference = torch.optim.Muon([alone], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for seed in (1, 2):
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        alone.grad = q.grad.clone()
        optimizer.step()
        reference.step()
        torch.testing.assert_close(q, alone, rtol=0, atol=0)
        # loaded state and changed rates reach both parts
        optimizer.load_state_dict(optimizer.state_dict())
        for group in [*optimizer.param_groups, *reference.param_groups]:
            group["lr"] = 0.01


def test_warmup_stable_decay(text, tmp_path):
    trainer = {"lr_scheduler_type": "warmup_stable_decay", "max_steps": 10, "warmup_steps": 2}
    pretrain(spec_of(text, tmp_path / "out", DENSE, trainer=trainer), quiet)
    rates = [line["learning_rate"] for line in log_of(tmp_path / "out") if "learning_rate" in line]
    assert rates[:2] == [0.0, 0.005] and rates[2:9] == [0.01] * 7 and 0 < rates[9] < 0.01
    assert with_decay_steps({"num_decay_steps": 0.5, "decay_type": "linear"}, 20) == {
        "num_decay_steps": 10,
        "decay_type": "linear",
    }
    assert with_decay_steps({"num_decay_steps": 3}, 20)["num_decay_steps"] == 3


def test_masked_language_model(text, tmp_path):
    model = {**DENSE, "is_causal": False}
    spec = spec_of(
        text, tmp_path / "out", model, objective="mlm", trainer={"max_steps": 100, "logging_steps": 50, "eval_steps": 50}
    )
    result = pretrain(spec, quiet)
    assert result["eval_perplexity"] < result["unigram_perplexity"]
    loaded, tokenizer = AutoModelForMaskedLM.from_pretrained(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.mask_token_id is not None and loaded.config.is_causal is False


def test_hidden_tokens_depend_on_row_epoch_and_seed_alone():
    rows = [{"input_ids": torch.randint(10, 99, (400,), dtype=torch.int32), "labels": torch.zeros(400)} for _ in range(6)]
    rows[0]["input_ids"][:50] = 3
    collator = MaskedRows(mask_id=4, special_ids=(3, 4), vocab_size=99, share=0.2, seed=1)
    batch, alone = collator(rows), collator(rows[2:3])
    assert torch.equal(batch["input_ids"][2:3], alone["input_ids"]) and torch.equal(batch["labels"][2:3], alone["labels"])
    original = torch.stack([row["input_ids"] for row in rows]).long()
    chosen = batch["labels"] != -100
    assert torch.equal(batch["labels"][chosen], original[chosen]) and not chosen[0, :50].any()
    assert torch.equal(batch["input_ids"][~chosen], original[~chosen])
    assert abs(chosen.float().mean().item() / (0.2 * (2350 / 2400)) - 1) < 0.15
    masked = (batch["input_ids"][chosen] == 4).float().mean().item()
    kept = (batch["input_ids"][chosen] == original[chosen]).float().mean().item()
    assert abs(masked - 0.8) < 0.08 and abs(kept - 0.1) < 0.06
    collator.epoch = 1
    assert not torch.equal(collator(rows)["labels"], batch["labels"])


@pytest.mark.slow
def test_samples_change_nothing_but_their_file(text, tmp_path):
    plain = pretrain(spec_of(text, tmp_path / "plain", {**MODEL, "hidden_dropout": 0.1}), quiet)
    samples, lines = {"prompts": ["verse 1", "the light of day"], "steps": 4, "generation": {"max_new_tokens": 4}}, []
    sampled = pretrain(spec_of(text, tmp_path / "out", {**MODEL, "hidden_dropout": 0.1}, samples=samples), lines.append)
    assert sampled["eval_loss"] == plain["eval_loss"]
    records = [json.loads(line) for line in (tmp_path / "out" / "training_samples.jsonl").read_text().splitlines()]
    assert [(record["step"], record["prompt"]) for record in records] == [
        (step, prompt) for step in (4, 8) for prompt in samples["prompts"]
    ]
    assert sum(line.startswith("sample at step") for line in lines) == 4


def test_speed_utilisation_and_time_left_are_logged(text, tmp_path):
    from hf_variants.analysis.flops import flops_per_token

    result = pretrain(spec_of(text, tmp_path / "out", DENSE, trainer={"max_steps": 4}, peak_flops=1e9), quiet)
    from transformers import AutoConfig

    lines = [line for line in log_of(tmp_path / "out") if "loss" in line]
    flops = 3 * flops_per_token(AutoConfig.from_pretrained(tmp_path / "out"), 32).total
    assert result["mfu"] == pytest.approx(result["tokens_per_second"] * flops / 1e9, rel=1e-6)
    assert lines[-1]["eta_seconds"] == 0 < lines[0]["eta_seconds"]
    assert all(line["mfu"] == pytest.approx(line["tokens_per_second"] * flops / 1e9, rel=0.05, abs=1e-4) for line in lines)


def test_utilisation_is_held_against_the_data_sheet_of_the_card():
    named = {
        "NVIDIA H200": 9.89e14,
        "NVIDIA H100 80GB HBM3": 9.89e14,
        "NVIDIA H100 PCIe": 7.56e14,
        "NVIDIA H200 NVL": 8.355e14,
        "NVIDIA A100-SXM4-80GB": 3.12e14,
        "NVIDIA B200": 2.25e15,
        "NVIDIA GH200 480GB": 9.89e14,
        "NVIDIA L40S": 3.62e14,
    }
    assert {name: data_sheet(name)[1] for name in named} == named
    assert data_sheet("NVIDIA H100 80GB HBM3 MIG 1g.10gb")[1] is None and data_sheet("a card of tomorrow")[1] is None


def test_bf16_activation_checkpointing_and_tensorboard(text, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer = {"max_steps": 3, "bf16": True, "activation_checkpointing": True, "report_to": "tensorboard"}
    result = pretrain(spec_of(text, tmp_path / "out", trainer=trainer), quiet)
    assert result["steps"] == 3
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "board")).Reload()
    tags = board.Tags()["scalars"]
    assert {"train/loss", "train/tokens_per_second", "train/mfu", "eval/perplexity"} <= set(tags), tags


@pytest.mark.slow
def test_trackio(text, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trainer = {"max_steps": 2, "report_to": "trackio", "project": "tiny", "run_name": "first"}
    assert pretrain(spec_of(text, tmp_path / "out", DENSE, trainer=trainer), quiet)["steps"] == 2
    (database,) = (tmp_path / "trackio").glob("*.db")
    content = database.read_bytes()
    assert b"tokens_per_second" in content and b"first" in content


def test_sources_of_every_kind_agree(tmp_path):
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    texts = [f"document {index}\n" + "word " * (10 + index) + "\n" for index in range(20)]
    lines = "\n".join(json.dumps({"text": text}) for text in texts)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress("\n\n".join(texts).encode()))
    parquet.write_table(arrow.table({"text": texts, "other": list(range(20))}), tmp_path / "d.parquet")
    (tmp_path / "e.txt").write_text("\r\n\r\n".join(text.replace("\n", "\r\n") for text in texts), newline="")
    expected = read_corpus(DataSpec(source=str(tmp_path / "a.jsonl")))
    for name in ("b.jsonl.gz", "c.txt.gz", "d.parquet", "e.txt"):
        corpus = read_corpus(DataSpec(source=str(tmp_path / name)))
        assert (corpus.train, corpus.eval, corpus.fingerprint) == (expected.train, expected.eval, expected.fingerprint)
    with pytest.raises(ValueError, match=r"no column data.text_key='body'; it holds \['other', 'text'\]"):
        read_corpus(DataSpec(source=str(tmp_path / "d.parquet"), text_key="body"))
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match="is no parquet file"):
        read_corpus(DataSpec(source=str(tmp_path / "bad.parquet")))


def test_weights_are_shares_of_the_text(tmp_path):
    for name, word, count in (("a", "alpha", 200), ("b", "be", 60)):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(f"{word} {n} " + f"{word} " * (n % 9) for n in range(count)))

    def sources(first, second):
        return [SourceSpec(str(tmp_path / "a.txt"), weight=first), SourceSpec(str(tmp_path / "b.txt"), weight=second)]

    corpus = read_corpus(DataSpec(sources=sources(3, 1)))
    alpha = sum(len(text) for text in corpus.train if text.startswith("alpha"))
    assert alpha / sum(map(len, corpus.train)) == pytest.approx(0.75, abs=0.02)
    assert len(corpus.train) == len(set(corpus.train))  # nothing is repeated
    assert [*corpus.shares.values()] == [alpha, sum(map(len, corpus.train)) - alpha]
    repeated = read_corpus(DataSpec(sources=sources(1, 1), stopping_strategy="all_exhausted"))
    assert len([text for text in set(repeated.train) if text.startswith("alpha")]) == len(
        [text for text in set(read_corpus(DataSpec(sources=sources(None, None))).train) if text.startswith("alpha")]
    )
    with pytest.raises(ValueError, match=r"data.sources\[1\].weight=None must be a positive number"):
        read_corpus(DataSpec(sources=sources(1, None)))


def test_a_stream_trains_like_a_list_of_its_own_split(text, tmp_path):
    """Streamed documents are split by a hash, read again at every pass, and lost or doubled nowhere."""
    spec = DataSpec(source=text, streaming=True, eval_fraction=0.3)
    corpus = read_corpus(spec)
    train, held_out = list(corpus.train), list(corpus.eval)
    assert train == list(corpus.train) and held_out and not set(train) & set(held_out)
    assert sorted(train + held_out) == sorted(
        read_corpus(DataSpec(source=text)).train + read_corpus(DataSpec(source=text)).eval
    )
    streamed = {"streaming": True, "eval_fraction": 0.3}
    result = pretrain(spec_of(text, tmp_path / "out", DENSE, data=streamed, trainer={"max_steps": 2}), quiet)
    assert result["steps"] == 2


BAD = {
    "span corruption": ({"objective": "span_corruption"}, "needs an encoder-decoder: give model.encoder"),
    "a decoder for mlm": ({"objective": "mlm"}, "set model.is_causal=false"),
    "an encoder for clm": ({"model": {**DENSE, "is_causal": False}}, "objective='clm' needs a causal model"),
    "a share of all": ({"mask_share": 1.0}, "mask_share=1.0 must lie between 0 and 1"),
    "a misspelt option": ({"optimizer": "muon", "muon": {"nstep": 3}}, "unknown key 'muon.nstep' .did you mean 'ns_steps'"),
    "a share that nothing hides": ({"mask_share": 0.3}, "mask_share=0.3 has no effect with objective='clm'"),
    "a token that nothing hides": ({"tokenizer": {"mask_token": "<m>"}}, "tokenizer.mask_token='<m>' has no effect with"),
    "options of no use": ({"muon": {"ns_steps": 3}}, "has no effect with optimizer='adamw'"),
    "two optimizers": ({"optimizer": "muon", "trainer": {"optim": "sgd"}}, "trainer.optim='sgd' has no effect"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes(text, tmp_path, name):
    sections, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        pretrain(spec_of(text, tmp_path / "out", **{"model": DENSE, **sections}), quiet)
    assert not (tmp_path / "out").exists()


def test_best_fit_rows_train(text, tmp_path):
    lines = []
    data = {"packing": "best_fit", "sequence_length": 64}
    result = pretrain(spec_of(text, tmp_path / "out", MODEL, data=data, trainer={"max_steps": 3}), lines.append)
    assert result["steps"] == 3 and np.isfinite(result["eval_loss"])
    assert any("padding" in line and "longer than a row and cut" in line for line in lines)


@pytest.mark.parametrize("keys, told", [({"max_steps": 4}, True), ({}, False)])
def test_epochs_beside_steps_are_told(tmp_path, monkeypatch, keys, told):
    from types import SimpleNamespace

    from transformers import TrainingArguments

    from hf_variants.training import whole_run

    lines, trained = [], []
    monkeypatch.setattr(whole_run, "train_from", lambda trainer, resume: trained.append(resume))
    arguments = TrainingArguments(output_dir=str(tmp_path / "out"), num_train_epochs=5, use_cpu=True, **keys)
    whole_run.train_on(SimpleNamespace(args=arguments), lines.append)
    assert trained == [None]
    assert lines == ["trainer.num_train_epochs=5 is unused, since trainer.max_steps=4 is given"] * told
