"""Models from disk and in memory: dtypes, tied heads, copies, and checkpoints that do not fit (known failures B39, B69)."""

import json

import pytest
import torch
from native_cases import CASES, native_model, token_ids
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig

from hf_variants.convert import from_native, to_native


def _rewrite(directory, change):
    file = directory / "model.safetensors"
    state = load_file(file)
    change(state)
    save_file(state, file, metadata={"format": "pt"})


@pytest.mark.parametrize(("family", "name"), dict(reversed(CASES)).items())
@torch.no_grad()
def test_a_directory_equals_the_model_in_memory(family, name, tmp_path):
    """On disk Mixtral and DeepSeek have one tensor per expert; the library fuses them before the rules see them."""
    native = native_model(family, name)
    native.save_pretrained(tmp_path)
    expected, found = from_native(native).state_dict(), from_native(tmp_path).state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@torch.no_grad()
def test_back_to_disk_the_files_are_equal(tmp_path):
    native = native_model("mixtral", "plain")
    native.save_pretrained(tmp_path / "before")
    to_native(from_native(tmp_path / "before")).save_pretrained(tmp_path / "after")
    before, after = (load_file(tmp_path / part / "model.safetensors") for part in ("before", "after"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    configs = [json.loads((tmp_path / part / "config.json").read_text()) for part in ("before", "after")]
    assert configs[0] == configs[1]


def test_dtype_is_kept_or_chosen(tmp_path):
    native = native_model("deepseek_v3", "groups").to(torch.bfloat16)
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    native.model.layers[1].mlp.gate.e_score_correction_bias.data = torch.randn(8)
    ours = from_native(native)
    dtypes = {name: tensor.dtype for name, tensor in ours.state_dict().items()}
    assert {dtypes.pop(bias), dtypes.pop(bias.replace("1.mlp", "2.mlp"))} == {torch.float32}
    assert torch.equal(ours.state_dict()[bias], native.state_dict()[bias])
    assert set(dtypes.values()) == {torch.bfloat16}
    assert ours.config.dtype == torch.bfloat16
    native.save_pretrained(tmp_path)
    assert from_native(tmp_path).lm_head.weight.dtype == torch.bfloat16
    assert from_native(tmp_path, dtype=torch.float32).lm_head.weight.dtype == torch.float32
    assert from_native(native, dtype=torch.float32).lm_head.weight.dtype == torch.float32


def test_weights_are_copies_and_the_model_is_in_eval_mode():
    native = native_model("llama", "tied_biased").train()
    ours = from_native(native)
    assert not ours.training
    assert ours.lm_head.weight is ours.model.embed_tokens.weight
    storages = {tensor.untyped_storage().data_ptr() for tensor in native.state_dict().values()}
    assert not storages & {tensor.untyped_storage().data_ptr() for tensor in ours.state_dict().values()}
    assert all(parameter.requires_grad for parameter in ours.parameters())


def test_generation_config_and_backend():
    native = native_model("llama", "plain")
    native.generation_config = GenerationConfig(do_sample=True, temperature=0.3, max_new_tokens=7)
    ours = from_native(native, attn_implementation="eager")
    assert ours.config._attn_implementation == "eager"
    assert ours.generation_config.to_dict() == native.generation_config.to_dict()
    back = to_native(ours, attn_implementation="eager")
    assert back.generation_config.temperature == 0.3
    assert back.config._attn_implementation == "eager"


# ---- the tie flag and the weights (B39) ----
@torch.no_grad()
def test_b39_tied_flag_with_two_heads_keeps_both(caplog):
    native = native_model("llama", "tied_biased")
    native.lm_head.weight = torch.nn.Parameter(torch.randn(64, 48))
    ours = from_native(native)
    assert ours.config.tie_word_embeddings is False
    ids = token_ids(1, 8)
    assert (ours(input_ids=ids).logits - native(input_ids=ids).logits).abs().max().item() <= 1e-5
    assert torch.equal(to_native(ours).lm_head.weight, native.lm_head.weight)


@torch.no_grad()
def test_b39_one_shared_head_without_the_flag_stays_one():
    native = native_model("llama", "plain")
    native.lm_head.weight = native.model.embed_tokens.weight
    ours = from_native(native)
    assert ours.config.tie_word_embeddings is True
    assert ours.lm_head.weight is ours.model.embed_tokens.weight
    back = to_native(ours)
    assert back.lm_head.weight is back.model.embed_tokens.weight


def test_b39_equal_heads_without_the_flag_stay_two():
    native = native_model("llama", "plain")
    native.lm_head.weight.data.copy_(native.model.embed_tokens.weight)
    ours = from_native(native)
    assert ours.config.tie_word_embeddings is False
    assert ours.lm_head.weight is not ours.model.embed_tokens.weight


@torch.no_grad()
def test_b39_checkpoint_with_both_heads_and_the_flag(tmp_path):
    native = native_model("llama", "tied_biased")
    native.save_pretrained(tmp_path)
    _rewrite(tmp_path, lambda state: state.update({"lm_head.weight": torch.randn(64, 48)}))
    ids = token_ids(1, 8)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path)(input_ids=ids).logits
    assert (from_native(tmp_path)(input_ids=ids).logits - expected).abs().max().item() <= 1e-5


# ---- checkpoints that do not fit (B69) ----
def test_b69_missing_tensors_are_named(tmp_path):
    native_model("llama", "plain").save_pretrained(tmp_path)
    _rewrite(tmp_path, lambda state: state.pop("model.layers.1.self_attn.k_proj.weight"))
    with pytest.raises(ValueError, match=r"missing: \['model\.layers\.1\.self_attn\.k_proj\.weight'\]"):
        from_native(tmp_path)


def test_b69_extra_tensors_are_named(tmp_path):
    native_model("llama", "plain").save_pretrained(tmp_path)
    _rewrite(tmp_path, lambda state: state.update({"model.layers.1.self_attn.q_norm.weight": torch.ones(8)}))
    with pytest.raises(ValueError, match=r"left over: \['model\.layers\.1\.self_attn\.q_norm\.weight'\]"):
        from_native(tmp_path)


def test_b69_misshaped_tensors_are_refused(tmp_path):
    native_model("llama", "plain").save_pretrained(tmp_path)
    _rewrite(tmp_path, lambda state: state.update({"model.norm.weight": torch.ones(7)}))
    with pytest.raises(ValueError, match=r"mismatched: .*model\.norm\.weight"):
        from_native(tmp_path)


def test_recomputed_tables_and_unbuilt_layers_are_harmless(tmp_path):
    native = native_model("deepseek_v3", "groups")
    native.save_pretrained(tmp_path)
    extra = {"model.layers.3.eh_proj.weight": torch.ones(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    _rewrite(tmp_path, lambda state: state.update(extra))
    assert torch.equal(from_native(tmp_path).lm_head.weight, native.lm_head.weight)


# ---- what is not a native causal language model ----
@pytest.mark.parametrize(("kind", "near"), [("gemma3_txt", "gemma3_text"), ("mistral5", "mistral"), ("Llama", "llama")])
def test_unknown_model_type_names_the_nearest(tmp_path, kind, near):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ValueError, match=rf"'{kind}' cannot be converted.*nearest known:.*\b{near}\b"):
        from_native(tmp_path)


def test_our_own_checkpoint_is_pointed_to_the_auto_class(tmp_path):
    import hf_variants  # noqa: F401

    ours = from_native(native_model("llama", "plain"))
    ours.save_pretrained(tmp_path)
    for given in (tmp_path, ours):
        with pytest.raises(ValueError, match="variants model already.*AutoModelForCausalLM"):
            from_native(given)


def test_other_heads_are_refused():
    native = native_model("llama", "plain")
    with pytest.raises(ValueError, match="LlamaModel cannot be converted: LlamaForCausalLM is needed"):
        from_native(native.model)
    with pytest.raises(ValueError, match="VariantsModel cannot be converted: VariantsForCausalLM is needed"):
        to_native(from_native(native).model)


def test_toggles_while_converting_are_pointed_to_the_way(tmp_path):
    native_model("llama", "plain").save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"qk_norm='head' is a toggle .* llama does not have.*from_pretrained\(folder, qk_norm"
    ):
        from_native(tmp_path, qk_norm="head")


def test_load_arguments_for_a_model_in_memory_are_refused():
    with pytest.raises(ValueError, match=r"\['gguf_file', 'revision'\] say how to load"):
        from_native(native_model("llama", "plain"), gguf_file="x.gguf", revision="main")


def test_quantized_weights_are_refused():
    native = native_model("llama", "plain")
    native.config.quantization_config = {"quant_method": "awq"}
    with pytest.raises(ValueError, match="quantized weights.*awq"):
        from_native(native)


# ---- models that never were native ----
@torch.no_grad()
def test_a_model_of_ours_becomes_native():
    from native_cases import randomise

    from hf_variants.modeling.configuration_variants import VariantsConfig
    from hf_variants.modeling.modeling_variants import VariantsForCausalLM

    toggles = {"qk_norm": "head", "num_experts": 4, "moe_intermediate_size": 24, "num_key_value_heads": 2}
    config = VariantsConfig(
        vocab_size=64, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, intermediate_size=40, **toggles
    )
    ours = VariantsForCausalLM(config).eval()
    randomise(ours)
    native = to_native(ours)
    assert type(native).__name__ == "Qwen3MoeForCausalLM"
    ids = token_ids(2, 12)
    assert (native(input_ids=ids).logits - ours(input_ids=ids).logits).abs().max().item() <= 1e-5
    with pytest.raises(ValueError, match="llama cannot express.*qk_norm.*num_experts"):
        to_native(ours, family="llama")
