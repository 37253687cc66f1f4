"""quantize_checkpoint: a folder in, a verified folder and a report out; and the real SmolLM2."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hf_variants.jobs import QuantizeSpec
from hf_variants.jobs.quantization import check_quantization
from hf_variants.quantize import quantize_checkpoint
from hf_variants.quantize.checkpoint import ids_perplexity
from hf_variants.training.spec_parsing import build_spec
from tests.quantize.quantized import calibration, fitting
from tests.variants import draw_ids, far

KJV = Path(__file__).parents[2] / "recipes" / "data" / "kjv.txt"


def test_a_variants_folder(tmp_path):
    fitting("tied").save_pretrained(tmp_path / "full")
    seen = []
    report = quantize_checkpoint(
        tmp_path / "full",
        tmp_path / "q",
        group_size=32,
        calibration=calibration(),
        eval_ids=draw_ids(4, 16),
        calibration_length=32,
        progress=lambda *event: seen.append(event),
    )
    assert seen == [(1, 2, "model.layers.0"), (2, 2, "model.layers.1")]
    assert json.loads((tmp_path / "q" / "quantization_report.json").read_text()) == report
    assert report["method"] == "awq" and report["bytes"] < report["source_bytes"] / 2
    assert set(report["perplexity"]) == {"full", "rtn", "awq", "how"}
    card = (tmp_path / "q" / "README.md").read_text()
    assert "| method | awq, 4 bits, groups of 32 |" in card and f"{report['bytes']:,} (source: " in card
    for name, title in (("full", "full precision"), ("rtn", "rounded to nearest"), ("awq", "awq")):
        assert f"| perplexity, {title} | {report['perplexity'][name]:.3f} |" in card
        if name != "full":
            line = f"| divergence from full precision (KL, nats per token), {title} | {report['divergence'][name]:.5f} |"
            assert line in card
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32)
    assert ids_perplexity(reloaded, draw_ids(4, 16)) == pytest.approx(report["perplexity"]["awq"], rel=1e-4)


def test_a_native_folder_is_brought_into_the_family(tmp_path):
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    native = LlamaForCausalLM(config).eval()
    native.save_pretrained(tmp_path / "full")
    report = quantize_checkpoint(tmp_path / "full", tmp_path / "q", method="rtn", group_size=32, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32)
    assert model.config.model_type == "variants" and report["quantized_modules"] == 14
    with torch.no_grad():
        ids = draw_ids(2, 16)
        expected = native(ids).logits
        assert far(model(ids).logits, expected) < 0.2 * expected.abs().max().item()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gptq"}, r"method='gptq' is unknown; choose from \['awq', 'rtn', 'int8'\]"),
        ({"method": "awq"}, "needs calibration"),
        ({"method": "rtn", "calibration": [[1, 2]]}, "calibration means nothing to method='rtn'"),
        ({"method": "int8", "calibration": [[1, 2]]}, "calibration means nothing to method='int8'"),
        ({"method": "rtn", "clip": False}, r"\['clip'\] mean nothing to method='rtn'"),
        ({"method": "int8", "clip": False}, r"\['clip'\] mean nothing to method='int8'"),
        ({"method": "int8", "max_bytes": 1000}, "measured on calibration tokens, which method='int8' has not"),
        ({"method": "rtn", "bits": 8}, r"stores 4-bit codes; choose from \[4\]; bits=8 is what method='int8' writes"),
        ({"method": "int8", "bits": 4}, r"stores 8-bit codes; choose from \[8\]; bits=4 is what method='awq' writes"),
        ({"method": "int8", "group_size": 48}, "group_size=48 is not supported"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        quantize_checkpoint(tmp_path, tmp_path / "q", **options)


@pytest.mark.parametrize("target", ["full", ".", "full/../full"])
def test_the_source_is_never_replaced(target, tmp_path):
    fitting().save_pretrained(tmp_path / "full")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="is the source .* or holds it"):
        quantize_checkpoint(tmp_path / "full", tmp_path / target, method="rtn", group_size=32, overwrite=True)
    keys = {"model_path": str(tmp_path / "full"), "output_dir": str(tmp_path / target), "method": "rtn", "overwrite": True}
    with pytest.raises(ValueError, match="is the source .* or holds it"):
        check_quantization(build_spec(QuantizeSpec, keys))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_target_inside_of_a_file_is_refused_before_the_work(tmp_path):
    fitting().save_pretrained(tmp_path / "full")
    with pytest.raises(ValueError, match="would lie in .*config.json', which is a file"):
        quantize_checkpoint(tmp_path / "full", tmp_path / "full" / "config.json" / "q", method="rtn", group_size=32)


@pytest.mark.slow
def test_smollm2_keeps_most_of_its_perplexity(smollm2, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    ids = torch.tensor(tokenizer(KJV.read_text()[:120_000])["input_ids"])
    report = quantize_checkpoint(
        smollm2, tmp_path / "q", calibration=ids[: 4 * 512], eval_ids=ids[-4 * 512 :].view(4, 512), group_size=64
    )
    full, rtn, awq = (report["perplexity"][name] for name in ("full", "rtn", "awq"))
    assert awq - full < 0.67 * (rtn - full)  # 0.60 was measured: four rows calibrate little
    assert report["bytes"] < 0.45 * 269e6
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "q")
    prompt = AutoTokenizer.from_pretrained(tmp_path / "q")("In the beginning God created", return_tensors="pt")
    continued = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert len(set(continued.tolist())) > 6, "a model that quantisation broke repeats itself"
