"""Checkpoints: read back by plain `from_pretrained`, equal to the model in memory, complete or absent, bitwise
when saved again."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AwqConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.quantizers import auto
from transformers.quantizers.quantizer_awq import AwqQuantizer

from hf_variants import VariantsForSequenceClassification
from hf_variants.modeling import awq_loading as loading
from hf_variants.quantize import AwqLinear, dequantize, quantize_awq, quantize_rtn, register_awq, save_quantized
from tests.quantize.quantized import FITTING, FITTING_EXPERTS, FITTING_MLA, calibration, fitting
from tests.variants import build, draw_ids, far, tiny

CASES = {
    "gqa": {},
    "tied": {},
    "attention_bias": {},
    "lm_head_bias": {},
    "rmsnorm_unit_offset": {},
    "layernorm": {},
    "post": {},
    "parallel": {},
    "plain_bias": {"hidden_act": "relu"},
    "learned": {},
    "mla_q_lora": FITTING_MLA,
    "moe_biases": FITTING_EXPERTS,
    "moe_shared_gate": FITTING_EXPERTS,
    "moe_groups": {"moe_intermediate_size": 32},
    "moe_mla": {**FITTING_MLA, "moe_intermediate_size": 32, "mlp_layer_types": ["dense", "sparse"]},
}


def written(directory, name="gqa", **options):
    result = quantize_awq(fitting(name, **CASES[name]), calibration(8), group_size=32, **options)
    ids = draw_ids(2, 16)
    with torch.no_grad():
        logits = result.model(ids).logits
    facts = save_quantized(result, directory)
    return result, ids, logits, facts


@pytest.mark.parametrize("name", CASES)
def test_reloaded_logits_equal_the_model_in_memory(name, tmp_path):
    result, ids, logits, facts = written(tmp_path / "q", name)
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32, output_loading_info=True)
    assert not any(info.values())
    # the matrices are equal; products of a transposed matrix add up in another order
    tolerance = 1e-5 * max(1.0, logits.abs().max().item())
    with torch.no_grad():
        assert far(model(ids).logits, logits) < tolerance
    assert facts["max_logit_difference"] < 10 * tolerance
    layers = {n for n, module in model.named_modules() if isinstance(module, AwqLinear)}
    assert layers == set(result.codes)
    if name == "tied":
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_bfloat16_is_the_default_and_generates(tmp_path):
    _, ids, logits, _ = written(tmp_path / "q", "moe_mla")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "q")
    assert model.dtype == torch.bfloat16
    dense = dequantize(AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32)).bfloat16()
    with torch.no_grad():  # as near as the same weights without packing: bfloat16 itself may choose other experts
        own, plain = ((m(ids).logits.float() - logits).abs().mean() for m in (model, dense))
    assert own < 1.5 * plain
    assert model.generate(ids, max_new_tokens=5, do_sample=False).shape == (2, 21)


def test_saving_again_after_forwards_is_bitwise_equal(tmp_path):
    _, ids, _, _ = written(tmp_path / "q", "moe_shared_gate")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "q")
    with torch.no_grad():
        model(ids)
        model(ids[:1, :1])
    assert any(module._kernel is not None for module in model.modules() if isinstance(module, AwqLinear))
    model.save_pretrained(tmp_path / "again")
    first, second = load_file(tmp_path / "q" / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(first[n].dtype == second[n].dtype and torch.equal(first[n], second[n]) for n in first)
    configs = [json.loads((tmp_path / part / "config.json").read_text()) for part in ("q", "again")]
    assert configs[0]["quantization_config"] == configs[1]["quantization_config"]


def test_what_is_written_is_autoawq_gemm(tmp_path):
    result, *_ = written(tmp_path / "q", "moe_mla")
    config = json.loads((tmp_path / "q" / "config.json").read_text())
    assert config["quantization_config"] == {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": ["lm_head", "model.layers.1.mlp.gate"],
    }
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    name = "model.layers.1.mlp.experts.2.down_proj"
    assert tensors[f"{name}.qweight"].shape == (32, 64 // 8) and tensors[f"{name}.qweight"].dtype == torch.int32
    assert tensors[f"{name}.qzeros"].shape == (1, 64 // 8)
    assert tensors[f"{name}.scales"].shape == (1, 64) and tensors[f"{name}.scales"].dtype == torch.float16
    assert tensors["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert {n for n in tensors if n.endswith(".weight") and "proj" in n} == set()
    report = json.loads((tmp_path / "q" / "quantization_report.json").read_text())
    assert report["quantized_modules"] == len(result.codes) and report["bytes"] > 0


def test_a_selection_bias_stays_float32(tmp_path):
    written(tmp_path / "q", "moe_groups")
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    assert tensors["model.layers.0.mlp.gate.e_score_correction_bias"].dtype == torch.float32


def test_base_model_and_classifier_read_the_same_folder(tmp_path):
    _, ids, logits, _ = written(tmp_path / "q", "tied")
    base = AutoModel.from_pretrained(tmp_path / "q", dtype=torch.float32)
    with torch.no_grad():
        hidden = base(ids).last_hidden_state
        assert far(hidden @ base.embed_tokens.weight.t(), logits) < 1e-5 * logits.abs().max().item()
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "q", dtype=torch.float32, num_labels=3)
    assert isinstance(classifier.model.layers[0].mlp.up_proj, AwqLinear)
    assert isinstance(classifier.score, torch.nn.Linear)


def test_a_classifier_can_be_quantised(tmp_path):
    config = tiny("gqa", **FITTING, num_labels=3)
    result = quantize_awq(build(config, VariantsForSequenceClassification), calibration(4), group_size=32)
    assert result.report.unquantized_modules == ["score"]
    save_quantized(result, tmp_path / "q")


def test_sharded_folders_load(tmp_path):
    result = quantize_rtn(fitting(), group_size=32)
    save_quantized(result, tmp_path / "q", max_shard_size="20KB")
    assert len(list((tmp_path / "q").glob("*.safetensors"))) > 1


def test_an_occupied_folder_is_refused_or_replaced_whole(tmp_path):
    target = tmp_path / "q"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; name another one or pass overwrite=True"):
        save_quantized(quantize_rtn(fitting(), group_size=32), target)
    save_quantized(quantize_rtn(fitting(), group_size=32), target, overwrite=True)
    assert not (target / "notes.txt").exists() and (target / "config.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


@pytest.mark.parametrize("step", ["verify_checkpoint", "write_report", "_move_into_place"])
def test_a_run_that_stops_leaves_nothing_that_looks_finished(step, tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"hf_variants.quantize.writer.{step}", stop)
    with pytest.raises(KeyboardInterrupt):
        save_quantized(quantize_rtn(fitting(), group_size=32), tmp_path / "q")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_reads_back_differently_is_not_written(tmp_path, monkeypatch):
    original = AwqLinear.dequantize
    result = quantize_rtn(fitting(), group_size=32)
    monkeypatch.setattr(AwqLinear, "dequantize", lambda self, *args: original(self, *args) * 1.01)
    with pytest.raises(RuntimeError, match="differs from the quantised model"):
        save_quantized(result, tmp_path / "q")
    assert list(tmp_path.iterdir()) == []


def test_truncated_weights_are_an_error(tmp_path):
    written(tmp_path / "q")
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    tensors.pop("model.layers.0.self_attn.q_proj.scales")
    from safetensors.torch import save_file

    save_file(tensors, tmp_path / "q" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"missing \(model\.layers\.0\.self_attn\.q_proj\.scales\)"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "q")


def native_folder(directory, model):
    """A native model's AWQ folder as another tool would write it: 4-bit tensors beside a config."""
    from hf_variants.quantize.rounding import quantize_groups

    for name, module in list(model.model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            model.set_submodule(f"model.{name}", AwqLinear.from_codes(quantize_groups(module.weight.data, 32)))
    model.config.quantization_config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "version": "GEMM",
    }
    model.save_pretrained(directory)
    return model


def test_native_awq_checkpoints_of_other_tools_load_too(tmp_path):
    config = LlamaConfig(vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    model = native_folder(tmp_path / "q", LlamaForCausalLM(config).eval())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32, quantization_config=AwqConfig())
    with torch.no_grad():
        assert far(loaded(draw_ids(2, 8)).logits, model(draw_ids(2, 8)).logits) < 1e-5


def test_native_fused_experts_are_refused_instead_of_left_random(tmp_path):
    result = quantize_rtn(fitting("moe", **FITTING_EXPERTS), group_size=32)
    save_quantized(result, tmp_path / "q")
    config = Qwen3MoeConfig(
        vocab_size=61,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        quantization_config=result.quantization_config,
    )
    config.save_pretrained(tmp_path / "q")
    with pytest.raises(ValueError, match=r"no Linear of that name .* would start from random weights"):
        Qwen3MoeForCausalLM.from_pretrained(tmp_path / "q")


@pytest.mark.parametrize(("field", "value"), [("bits", 8), ("version", "gemv"), ("zero_point", False)])
def test_formats_that_only_gptqmodel_reads_are_refused(field, value, tmp_path):
    written(tmp_path / "q")
    config = AutoConfig.from_pretrained(tmp_path / "q")
    config.quantization_config[field] = value
    config.save_pretrained(tmp_path / "q")
    with pytest.raises(ValueError, match=f"quantization_config.{field}=.* cannot be loaded without gptqmodel"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "q")


def test_transformers_own_quantizer_stays_where_gptqmodel_is_installed(monkeypatch):
    monkeypatch.setitem(auto.AUTO_QUANTIZER_MAPPING, "awq", AwqQuantizer)
    monkeypatch.setattr(loading, "is_gptqmodel_available", lambda: True)
    register_awq()
    assert auto.AUTO_QUANTIZER_MAPPING["awq"] is AwqQuantizer
    monkeypatch.setattr(loading, "is_gptqmodel_available", lambda: False)
    register_awq()
    assert auto.AUTO_QUANTIZER_MAPPING["awq"] is loading.TorchAwqQuantizer
