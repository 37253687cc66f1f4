"""`--method int8`: every matrix of the layers in 8 bits, read back by plain `from_pretrained`, bitwise when saved again."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.quantizers import auto
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer

from hf_variants.modeling import int8_loading
from hf_variants.quantize import (
    Int8Linear,
    dequantize,
    quantization_quality,
    quantize_checkpoint,
    quantize_int8,
    save_quantized,
)
from tests.quantize.quantized import FITTING_EXPERTS, FITTING_MLA, fitting
from tests.variants import draw_ids, far

CASES = {
    "tied": ({}, -1),
    "attention_bias": ({}, 32),
    "moe_shared_gate": (FITTING_EXPERTS, -1),
    "moe_mla": ({**FITTING_MLA, "moe_intermediate_size": 32, "mlp_layer_types": ["dense", "sparse"]}, 32),
}


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits.float()


def apart(logits, expected):
    """Mean squared difference beside the mean square; 4 bits give 0.1 and more here."""
    return float((logits - expected).square().mean() / expected.square().mean())


@pytest.mark.parametrize("name", CASES)
def test_reloaded_near_the_source_and_bitwise_when_saved_again(name, tmp_path):
    overrides, group = CASES[name]
    source, ids = fitting(name, **overrides), draw_ids(2, 16)
    result = quantize_int8(source, group_size=group, dtype=torch.float32)
    save_quantized(result, tmp_path / "q")
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32, output_loading_info=True)
    assert not any(info.values())
    expected = logits_of(source, ids)
    assert apart(logits_of(model, ids), expected) < 0.02
    packed = {n for n, module in model.named_modules() if isinstance(module, Int8Linear)}
    assert packed == set(result.codes) and {".experts." in n for n in packed} == {"moe" in name, False}
    model.save_pretrained(tmp_path / "again")
    first, second = (load_file(tmp_path / part / "model.safetensors") for part in ("q", "again"))
    assert first.keys() == second.keys()
    assert all(first[n].dtype == second[n].dtype and torch.equal(first[n], second[n]) for n in first)
    configs = [json.loads((tmp_path / part / "config.json").read_text()) for part in ("q", "again")]
    assert configs[0]["quantization_config"] == configs[1]["quantization_config"]
    dense = dequantize(model)
    assert far(logits_of(dense, ids), logits_of(model, ids)) < 1e-5 * max(1.0, expected.abs().max().item())


def test_what_is_written_is_pack_quantized(tmp_path):
    save_quantized(quantize_int8(fitting(), group_size=32), tmp_path / "q")
    config = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors" and config["format"] == "pack-quantized"
    weights = config["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["symmetric"], weights["strategy"], weights["group_size"]) == (8, True, "group", 32)
    assert config["ignore"] == ["lm_head"]
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    name = "model.layers.1.mlp.down_proj"
    assert tensors[f"{name}.weight_packed"].shape == (64, 96 // 4) and tensors[f"{name}.weight_packed"].dtype == torch.int32
    assert tensors[f"{name}.weight_scale"].shape == (64, 3) and tensors[f"{name}.weight_scale"].dtype == torch.bfloat16
    assert tensors[f"{name}.weight_shape"].tolist() == [64, 96]
    assert {n for n in tensors if n.endswith(".weight") and "proj" in n} == set()


def test_lora_trains_and_merges(tmp_path):
    save_quantized(quantize_int8(fitting("attention_bias"), dtype=torch.float32), tmp_path / "q")
    model, ids = AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32), draw_ids(2, 16)
    packed = {n for n, module in model.named_modules() if isinstance(module, Int8Linear)}
    live = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    reached = {n.removeprefix("base_model.model.").split(".lora_A")[0] for n, _ in live.named_parameters() if ".lora_A" in n}
    assert reached == packed
    optimizer, losses = torch.optim.AdamW([p for p in live.parameters() if p.requires_grad], lr=1e-2), []
    for _ in range(8):
        optimizer.zero_grad()
        loss = live(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.05
    expected = logits_of(live.eval(), ids)
    merged = live.merge_and_unload()
    assert far(logits_of(merged, ids), expected) < 1e-5 * max(1.0, expected.abs().max().item())
    assert getattr(merged.config, "quantization_config", None) is None


@pytest.mark.slow
def test_a_native_folder_out_and_in(tmp_path):
    config = LlamaConfig(vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    native, ids = LlamaForCausalLM(config).eval(), draw_ids(2, 16)
    native.save_pretrained(tmp_path / "full")
    seen = []
    report = quantize_checkpoint(
        tmp_path / "full",
        tmp_path / "q",
        method="int8",
        to="native",
        dtype=torch.float32,
        eval_ids=draw_ids(4, 16),
        progress=lambda *event: seen.append(event[:2]),
    )
    assert seen == [(1, 2), (2, 2)]
    assert (report["bits"], report["group_size"], report["symmetric"]) == (8, -1, True)
    assert set(report["perplexity"]) == {"full", "int8", "how"}
    assert report["perplexity"]["int8"] == pytest.approx(report["perplexity"]["full"], rel=0.01)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32)
    assert type(model) is LlamaForCausalLM and isinstance(model.model.layers[0].mlp.up_proj, Int8Linear)
    expected = logits_of(native, ids)
    assert apart(logits_of(model, ids), expected) < 0.02


@pytest.mark.slow
def test_an_interrupted_run_continues_and_ends_equal(tmp_path):
    fitting().save_pretrained(tmp_path / "full")

    def stop(done, *_):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(tmp_path / "full", tmp_path / "q", method="int8", progress=stop)
    assert not (tmp_path / "q").exists()
    quantize_checkpoint(tmp_path / "full", tmp_path / "q", method="int8")
    quantize_checkpoint(tmp_path / "full", tmp_path / "whole", method="int8")
    first, second = (load_file(tmp_path / part / "model.safetensors") for part in ("q", "whole"))
    assert all(torch.equal(first[n], second[n]) for n in second)
    assert "int8, 8 bits, one group per output, symmetric" in (tmp_path / "q" / "README.md").read_text()
    quality = quantization_quality(tmp_path / "full", tmp_path / "q")
    assert quality["method"] == "compressed-tensors" and 35 < quality["overall"]["snr_db"] < 60 and not quality["left_dense"]


def test_widths_that_no_word_holds_are_refused_with_their_names():
    with pytest.raises(ValueError, match=r"down_proj: in_features=50 is not a multiple of 4"):
        quantize_int8(fitting(intermediate_size=50))
    with pytest.raises(
        ValueError, match=r"divide every in_features: \[32, -1\]; .*in_features=96 is not a multiple of group_size=64"
    ):
        quantize_int8(fitting(), group_size=64)


@pytest.mark.parametrize("change", [{"num_bits": 4}, {"symmetric": False}, {"strategy": "tensor"}, {"actorder": "group"}])
def test_other_schemes_are_left_to_transformers(change):
    settings = int8_loading.int8_settings(-1, ["lm_head"])
    assert int8_loading.reads(settings)
    settings["config_groups"]["group_0"]["weights"].update(change)
    assert not int8_loading.reads(settings)
    with pytest.raises(ImportError, match="compressed-tensors"):
        auto.AutoQuantizationConfig.from_dict(settings)


def test_where_compressed_tensors_is_installed_only_the_family_is_read_here(monkeypatch):
    settings = int8_loading.int8_settings(-1, ["lm_head"])
    monkeypatch.setattr(int8_loading, "is_compressed_tensors_available", lambda: True)
    monkeypatch.setattr(int8_loading.CompressedTensorsConfig, "from_dict", classmethod(lambda cls, settings: "theirs"))
    assert auto.AutoQuantizationConfig.from_dict(settings) == "theirs"
    with int8_loading.loading_the_family():
        ours = auto.AutoQuantizationConfig.from_dict(settings)
    assert isinstance(auto.AutoHfQuantizer.from_config(ours), int8_loading.TorchInt8Quantizer)
    assert ours.to_dict() == settings
    monkeypatch.setattr(CompressedTensorsHfQuantizer, "__init__", lambda self, config, **kwargs: None)
    theirs = int8_loading.CompressedTensorsConfig.__new__(int8_loading.CompressedTensorsConfig)
    assert type(int8_loading.quantizer_of(theirs)) is CompressedTensorsHfQuantizer
