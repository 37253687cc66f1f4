"""The seq2seq recipe on a base: native checkpoints are converted on the way in, adapters are trained on them and merged."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, SwitchTransformersConfig, T5Config, T5ForConditionalGeneration
from transformers import SwitchTransformersForConditionalGeneration as Switch

from hf_variants.finetune import load_adapter
from hf_variants.seq2seq import Seq2SeqSpec, seq2seq, write_texts
from hf_variants.training.spec_parsing import build_spec
from hf_variants.training.specs import TokenizerSpec
from hf_variants.training.tokenizer import train_tokenizer
from tests.training.runs import STEPS

WORDS = ("one", "two", "three", "four", "five")
RECORDS = [{"source": f"{a} {b}", "target": f"{b} and {a}"} for a in WORDS for b in WORDS]
SHAPE = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with pairs.jsonl and the native base/."""
    place = tmp_path_factory.mktemp("base")
    (place / "pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    tokenizer = train_tokenizer(
        [f"{row['source']} {row['target']}" for row in RECORDS], TokenizerSpec(vocab_size=280), "seq2seq"
    )
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    config = T5Config(vocab_size=len(tokenizer), decoder_start_token_id=tokenizer.pad_token_id, **ids, **SHAPE)
    T5ForConditionalGeneration(config).save_pretrained(place / "base")
    tokenizer.save_pretrained(place / "base")
    return place


def run(folder, out, lines=None, **keys):
    data = {"source": str(folder / "pairs.jsonl"), "max_source_length": 24, "max_target_length": 24, "eval_fraction": 0.2}
    trainer = {"max_steps": 3, "per_device_train_batch_size": 8, "learning_rate": 3e-2, **STEPS}
    sections = {"data": data, "trainer": trainer, "generation": {"max_new_tokens": 6}}
    keys = {"model_path": str(folder / "base"), **keys}
    announce = print if lines is None else lines.append
    return seq2seq(build_spec(Seq2SeqSpec, {"output_dir": str(out), **sections, **keys}), announce)


def test_an_adapter_is_trained_on_the_converted_base_and_merged(folder, tmp_path):
    lines, adapter = [], {"r": 2, "alpha": 4.0}
    result = run(folder, tmp_path / "out", lines, method="lora", adapter=adapter)
    out = tmp_path / "out"
    assert result["steps"] == 3 and 0 < result["trainable"] < result["parameters"] / 2
    assert json.loads((out / "base" / "config.json").read_text())["model_type"] == "variants_seq2seq"
    names = list(load_file(out / "adapter_model.safetensors"))
    assert all("lora_" in name for name in names) and not (out / "model.safetensors").exists()
    assert all(any(part in name for name in names) for part in ("encoder.layers.0.self_attn", "decoder.layers.0.cross_attn"))
    assert json.loads((out / "adapter_config.json").read_text())["task_type"] == "SEQ_2_SEQ_LM"

    tokenizer = AutoTokenizer.from_pretrained(out)
    merged = AutoModelForSeq2SeqLM.from_pretrained(out / "merged").eval()
    base = AutoModelForSeq2SeqLM.from_pretrained(out / "base").eval()
    adapted = load_adapter(out)
    batch = tokenizer([row["source"] for row in RECORDS[:4]], return_tensors="pt", padding=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")} | {"decoder_input_ids": batch["input_ids"]}
    with torch.no_grad():
        logits = [model(**inputs).logits for model in (merged, adapted, base)]
    assert (logits[0] - logits[1]).abs().max() < 1e-4 < 1e-3 < (logits[0] - logits[2]).abs().max()
    assert result["merged"]["max_difference"] < 1e-4
    written = [json.loads(line) for line in (out / "written.jsonl").read_text().splitlines()]
    sources = [row["source"] for row in written]
    assert write_texts(merged, tokenizer, sources, {"max_new_tokens": 6}) == [row["written"] for row in written]
    for card in (out / "README.md", out / "merged" / "README.md", out / "report.html"):
        assert "rank 2, alpha 4" in card.read_text()
    assert any("of them trained (lora)" in line for line in lines)
    assert run(folder, out, lines, method="lora", adapter=adapter) == result and "already finished" in lines[-1]


@pytest.mark.slow
def test_all_weights_are_trained_on_the_converted_base(folder, tmp_path):
    result = run(folder, tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == "VariantsForSeq2SeqLM" and "merged" not in result
    assert result["trainable"] == result["parameters"] == sum(p.numel() for p in model.parameters())
    again = run(folder, tmp_path / "again", model_path=str(tmp_path / "out"))
    assert again["steps"] == 3 and not (tmp_path / "again" / "base").exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dora", "qlora"])
def test_other_methods(method, folder, tmp_path):
    if method == "qlora":
        pytest.importorskip("bitsandbytes")
    result = run(folder, tmp_path / "out", method=method, adapter={"r": 2})
    assert result["steps"] == 3 and result["trainable"] < result["parameters"]
    assert (tmp_path / "out" / "merged" / "model.safetensors").is_file()


STACK = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"adapter": {"r": 4}}, "adapter.r=4 has no effect with method='full'"),
        (
            {"method": "lora", "model_path": None, "model": {"encoder": STACK, "decoder": STACK}},
            "method='lora' trains an adapter on the weights of a checkpoint",
        ),
        ({"method": "lora", "distributed": {"fsdp_size": 2}}, "method='lora' does not go with distributed"),
        *(({"method": method, "optimizer": "muon"}, "optimizer='muon' is for whole") for method in ("lora", "dora", "qlora")),
        ({"method": "lora", "adapter": {"r": 0}}, "adapter.r=0 must be at least 1"),
    ],
)
def test_mistakes(folder, tmp_path, keys, message):
    with pytest.raises(ValueError, match=message):
        run(folder, tmp_path / "out", **keys)
    assert not (tmp_path / "out").exists()


def test_a_native_type_that_does_not_convert_says_why(folder, tmp_path):
    config = SwitchTransformersConfig(vocab_size=280, num_experts=2, decoder_start_token_id=0, **SHAPE)
    Switch(config).save_pretrained(tmp_path / "switch")
    with pytest.raises(ValueError, match="'switch_transformers' cannot be converted"):
        run(folder, tmp_path / "out", model_path=str(tmp_path / "switch"))
