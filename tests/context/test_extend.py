"""`extend_context` measures, scales, fine-tunes and saves; and it continues, skips and refuses as it should."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.context import ExtendSpec, extend_context
from hf_variants.context.extend_spec import COMPARED, LengthSpec, PasskeySpec
from hf_variants.jobs import extend
from hf_variants.training.specs import DataSpec, TokenizerSpec
from hf_variants.training.tokenizer import train_tokenizer

WORDS = (
    "in the beginning god created heaven and earth light was upon face of deep waters spirit moved said let there be".split()
)


def text(number, length=700):
    return " ".join(WORDS[(number * 7 + index * index) % len(WORDS)] for index in range(length))


@pytest.fixture
def checkpoint(tmp_path):
    """A tiny checkpoint of 32 tokens of context, its documents, and where to write."""
    documents = [text(number) for number in range(6)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    tokenizer = train_tokenizer(documents, TokenizerSpec(vocab_size=300))
    config = VariantsConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    VariantsForCausalLM(config).save_pretrained(tmp_path / "short")
    tokenizer.save_pretrained(tmp_path / "short")
    return tmp_path


def spec_of(folder, **keys):
    trainer = {
        "max_steps": 3,
        "per_device_train_batch_size": 2,
        "eval_steps": 3,
        "save_steps": 2,
        "disable_tqdm": True,
        "learning_rate": 1e-2,
    }
    defaults = {
        "model_path": str(folder / "short"),
        "output_dir": str(folder / "long"),
        "data": DataSpec(source=str(folder / "text.txt"), sequence_length=128, eval_fraction=0.3),
        "compare": ["none", "yarn"],
        "trainer": {**trainer, "use_cpu": True},
        "position_buckets": 4,
        "max_tokens": 512,
    }
    return ExtendSpec(**{**defaults, **keys})


def quiet(_):
    pass


def test_extension_from_checkpoint_to_checkpoint(checkpoint):
    lines = []
    result = extend_context(spec_of(checkpoint), lines.append)
    assert (result["context_before"], result["context_after"], result["eval_rows"]) == (32, 128, 4)
    assert [bucket["end"] for bucket in result["after"]] == [32, 64, 96, 128]
    assert set(result["before"]) == {"none", "yarn"} and result["verification"]["ok"]
    assert result["training"]["steps"] == 3
    assert result["after"][-1]["loss"] < result["before"]["yarn"][-1]["loss"]
    assert any("frequencies changed" in line for line in lines)
    assert json.loads((checkpoint / "long" / "extension.json").read_text()) == result
    config = AutoConfig.from_pretrained(checkpoint / "long")
    assert config.rope_parameters["rope_type"] == "yarn" and config.max_position_embeddings == 128
    model = AutoModelForCausalLM.from_pretrained(checkpoint / "long")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint / "long")
    assert model.generate(**tokenizer("in the", return_tensors="pt"), max_new_tokens=4).shape[0] == 1
    lines.clear()
    assert extend_context(spec_of(checkpoint), lines.append) == result
    assert len(lines) == 1 and "already finished" in lines[0]
    with pytest.raises(ValueError, match="method: yarn -> linear"):
        extend_context(spec_of(checkpoint, method="linear"), quiet)


def test_no_steps_only_rescales(checkpoint):
    result = extend_context(spec_of(checkpoint, method="ntk", trainer={"max_steps": 0}), quiet)
    assert result["training"] is None
    assert AutoConfig.from_pretrained(checkpoint / "long").rope_parameters["factor"] == 4.0


def test_an_interrupted_extension_keeps_its_measurements(checkpoint, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hf_variants.context.extend.fine_tune", stop)
        with pytest.raises(KeyboardInterrupt):
            extend_context(spec_of(checkpoint), quiet)
    lines = []
    extend_context(spec_of(checkpoint), lines.append)
    assert any(line.startswith("compare: already finished") for line in lines)


def test_bad_requests_are_refused_before_training(checkpoint):
    with pytest.raises(ValueError, match="sequence_length=32 must lie in \\(32, 128\\]"):
        data = DataSpec(source=str(checkpoint / "text.txt"), sequence_length=32, eval_fraction=0.3)
        extend_context(spec_of(checkpoint, data=data), quiet)
    with pytest.raises(ValueError, match="passkey.lengths holds 400, beyond the 128"):
        extend_context(spec_of(checkpoint, passkey=PasskeySpec(lengths=[400])), quiet)
    for lengths, message in (
        ((128, 64), "which must grow"),
        ((64, 256), "stages=256 must lie in"),
        ((16, 32), "stages=32 must"),
    ):
        with pytest.raises(ValueError, match=message):
            extend_context(spec_of(checkpoint, stages=[LengthSpec(length, 1) for length in lengths]), quiet)
    with pytest.raises(ValueError, match=r"stages\[0\].steps=0 must be at least 1"):
        extend_context(spec_of(checkpoint, stages=[LengthSpec(128, 0)]), quiet)
    assert not (checkpoint / "long").exists()
    with pytest.raises(ValueError, match="no held-out document has 3200 tokens"):
        extend_context(spec_of(checkpoint, factor=100.0, output_dir=str(checkpoint / "a")), quiet)
    with pytest.raises(ValueError, match="trainer.max_step'"):
        extend_context(spec_of(checkpoint, trainer={"max_step": 1}), quiet)
    with pytest.raises(ValueError, match="holds no model"):
        extend_context(spec_of(checkpoint, model_path=str(checkpoint / "missing"), output_dir=str(checkpoint / "b")), quiet)


@pytest.mark.slow
def test_stages_of_growing_length_go_on_where_they_stopped(checkpoint, monkeypatch):
    """Every method is compared, keys are looked for, two lengths are trained, and a finished stage is not trained again."""
    from hf_variants.training import pretraining

    keys = {"compare": list(COMPARED), "passkey": PasskeySpec(lengths=[192], trials=1, depths=[0.5]), "max_tokens": 256}
    spec = spec_of(checkpoint, **keys, factor=8.0, stages=[LengthSpec(64, 2, rows=4), LengthSpec(128, 3)])
    train, seen = pretraining.train, []

    def note(model, data, training):
        length = training.data.sequence_length
        seen.append((length, training.trainer["per_device_train_batch_size"]))
        # every row is a stretch of one document
        assert (next(data.train.batches())["position_ids"] == range(length)).all()

    def first(model, data, training, announce):
        note(model, data, training)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return train(model, data, training, announce)

    monkeypatch.setattr(pretraining, "train", first)
    with pytest.raises(KeyboardInterrupt):
        extend_context(spec, quiet)
    trained = AutoModelForCausalLM.from_pretrained(checkpoint / "long" / "stages" / "1-of-2-64").state_dict()

    def second(model, data, training, announce):
        note(model, data, training)
        assert all(tensor.equal(model.state_dict()[name]) for name, tensor in trained.items())
        return train(model, data, training, announce)

    monkeypatch.setattr(pretraining, "train", second)
    result = extend(spec, quiet)
    card = (Path(spec.output_dir) / "README.md").read_text()
    section = card[card.index("context begin") : card.index("context end")]
    last = result["after"][-1]
    assert f"| context before and after | {result['context_before']} and {result['context_after']} tokens |" in section
    assert f"| {last['perplexity']:,.4g} |" in section and spec.model_path not in section
    assert card.count("## Longer context") == 1 and ("## Training" in card) == bool(result["training"])
    assert seen == [(64, 4), (128, 2), (128, 2)]
    assert [(stage["length"], stage["steps"]) for stage in result["stages"]] == [(64, 2), (128, 3)]
    assert set(result["before"]) == set(result["passkey_before"]) == set(COMPARED)
    (row,) = result["passkey_after"]
    assert row["length"] == 192 and 0 <= row["accuracy"] <= 1 and row["key_loss"] > 0
    page = (checkpoint / "long" / "extension.html").read_text()
    assert "Pass keys found" in page and "longrope" in page and "Stages" in page
    for name in ("perplexity_by_position", "passkey"):
        assert (checkpoint / "long" / f"{name}.svg").read_bytes().startswith(b"<?xml")


def test_a_native_checkpoint_is_converted_on_the_way(checkpoint):
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(checkpoint / "short")
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    native = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=32))
    native.save_pretrained(checkpoint / "llama")
    tokenizer.save_pretrained(checkpoint / "llama")
    keys = {"model_path": str(checkpoint / "llama"), "compare": ["none"], "passkey": PasskeySpec(trials=0), "method": "theta"}
    result = extend_context(spec_of(checkpoint, **keys), quiet)
    assert result["context_after"] == 128 and result["passkey_after"] == [] and result["training"]["steps"] == 3
    config = AutoConfig.from_pretrained(checkpoint / "long")
    assert config.model_type == "variants" and config.rope_parameters["rope_theta"] > 10000


def test_what_is_left_unread_is_told(checkpoint, monkeypatch):
    """Corrupt records, and the keys whose part the stages take."""
    from hf_variants.context import extend as module

    lines, records = [], [json.dumps({"text": text(number)}) for number in range(40)]
    (checkpoint / "text.jsonl").write_text("\n".join([*records, "{no json"]))
    data = DataSpec(source=str(checkpoint / "text.jsonl"), sequence_length=128, eval_fraction=0.3)
    monkeypatch.setattr(module, "run_stage", lambda *arguments, **more: "stage")
    module.extend_context(spec_of(checkpoint, data=data, stages=[LengthSpec(64, 2)]), lines.append)
    assert lines[0].startswith("data: 1 of 41 records are corrupt") and len(lines) == 3
    assert [line.split(" is unused")[0] for line in lines[1:]] == ["trainer.max_steps=3", "data.sequence_length=128"]
    module.extend_context(spec_of(checkpoint), lines.append)
    assert len(lines) == 3
