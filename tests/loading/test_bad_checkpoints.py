"""Section 7: a checkpoint that does not fit is a ValueError that names each weight, never random values."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import hf_variants
from hf_variants import VariantsConfig, VariantsForCausalLM, VariantsModel
from hf_variants.registration import AUTO_CLASSES
from tests.variants import BASE, EXPERTS, MLA, build, tiny

HEADS = [cls for cls in AUTO_CLASSES.values()]
AUTO_OF = {cls: auto for auto, cls in AUTO_CLASSES.items()}
KEY = "layers.1.self_attn.k_proj.weight"


def build_head(model_class, **overrides):
    causal = model_class.__name__ != "VariantsForMaskedLM"
    return build(tiny("gqa", is_causal=causal, num_labels=3, **overrides), model_class)


def rewrite(directory, change):
    """Apply `change` to the tensors of a checkpoint in place."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_config(directory, **changes):
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def key_of(model_class):
    return KEY if model_class is VariantsModel else f"model.{KEY}"


@pytest.mark.parametrize("model_class", HEADS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("auto", [False, True])
def test_b69_missing_key_is_named(tmp_path, model_class, auto):
    build_head(model_class).save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.pop(key_of(model_class)))
    loader = AUTO_OF[model_class] if auto else model_class
    with pytest.raises(ValueError, match=rf"1 missing \({key_of(model_class)}\)"):
        loader.from_pretrained(tmp_path)


@pytest.mark.parametrize("model_class", HEADS, ids=lambda cls: cls.__name__)
def test_b69_extra_key_is_named(tmp_path, model_class):
    build_head(model_class).save_pretrained(tmp_path)
    extra = key_of(model_class).replace("k_proj", "z_proj")
    rewrite(tmp_path, lambda tensors: tensors.update({extra: torch.zeros(2)}))
    with pytest.raises(ValueError, match=rf"1 unexpected \({extra}\)"):
        model_class.from_pretrained(tmp_path)


@pytest.mark.parametrize("model_class", HEADS, ids=lambda cls: cls.__name__)
def test_b69_misshaped_key_is_named_with_both_shapes(tmp_path, model_class):
    build_head(model_class).save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({key_of(model_class): torch.zeros(24, 31)}))
    with pytest.raises(ValueError, match=rf"{key_of(model_class)}: \(24, 31\) in the file, \(24, 32\) by the config"):
        model_class.from_pretrained(tmp_path)


def test_b69_mha_checkpoint_into_a_gqa_config(tmp_path):
    build(tiny("mha")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"4 mis-shaped \(model.layers.0.self_attn.k_proj.weight: \(48, 32\).*\(24, 32\)"):
        VariantsForCausalLM.from_pretrained(tmp_path, num_key_value_heads=2)
    with pytest.raises(ValueError, match="4 mis-shaped"):
        AutoModelForCausalLM.from_pretrained(tmp_path, config=tiny("gqa"))


def test_b69_qk_norm_switched_on_over_an_old_checkpoint(tmp_path):
    build(tiny("gqa")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"4 missing \(model.layers.0.self_attn.k_norm.weight"):
        AutoModelForCausalLM.from_pretrained(tmp_path, qk_norm="head")
    build(tiny("qk_head")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"4 unexpected \(model.layers.0.self_attn.k_norm.weight"):
        AutoModelForCausalLM.from_pretrained(tmp_path, qk_norm="none")


def test_a_dropped_expert_layer_and_a_longer_stack_are_named(tmp_path):
    build(tiny("moe")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"missing \(model.layers.1.mlp.down_proj.*unexpected \(model.layers.1.mlp.experts"):
        VariantsForCausalLM.from_pretrained(tmp_path, mlp_layer_types=["sparse", "dense"])
    longer = VariantsConfig(**{**BASE, **EXPERTS, "num_hidden_layers": 3})
    with pytest.raises(ValueError, match=r"missing \(model.layers.2.input_layernorm.weight.*\.\.\.\)"):
        VariantsForCausalLM.from_pretrained(tmp_path, config=longer)


def test_balance_bias_belongs_to_the_checkpoint(tmp_path):
    build(tiny("moe_bias_balance")).save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.pop("model.layers.0.mlp.gate.e_score_correction_bias"))
    with pytest.raises(ValueError, match="model.layers.0.mlp.gate.e_score_correction_bias"):
        VariantsForCausalLM.from_pretrained(tmp_path)


def test_language_model_head_is_not_made_up(tmp_path):
    build_head(VariantsModel).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"1 missing \(lm_head.weight\)"):
        VariantsForCausalLM.from_pretrained(tmp_path)
    tied = VariantsForCausalLM.from_pretrained(tmp_path, tie_word_embeddings=True)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight


@pytest.mark.parametrize("name", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_fresh_task_head_over_a_pretrained_stack(tmp_path, name):
    pretrained = build_head(VariantsForCausalLM)
    pretrained.save_pretrained(tmp_path)
    model = getattr(hf_variants, f"VariantsFor{name}").from_pretrained(tmp_path, num_labels=3)
    for key, value in pretrained.model.state_dict().items():
        assert torch.equal(model.model.state_dict()[key], value), key
    head = model.qa_outputs if name == "QuestionAnswering" else model.score
    assert 0.005 < head.weight.std() < 0.04


def test_task_head_of_another_size_is_made_anew_when_asked(tmp_path):
    model_class = hf_variants.VariantsForSequenceClassification
    saved = build_head(model_class)
    saved.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"1 mis-shaped \(score.weight: \(3, 32\) in the file, \(7, 32\) by the config\)"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=7)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=7, ignore_mismatched_sizes=True)
    assert model.score.weight.shape == (7, 32)
    assert torch.equal(model.model.norm.weight, saved.model.norm.weight)
    with pytest.raises(ValueError, match="model.norm.weight"):
        rewrite(tmp_path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}))
        model_class.from_pretrained(tmp_path, num_labels=7, ignore_mismatched_sizes=True)


def test_b02_loaded_values_survive_and_only_the_deleted_key_is_drawn(tmp_path):
    model = build(tiny("moe_bias_balance", hidden_size=64, initializer_range=0.05))
    with torch.no_grad():
        for index, value in enumerate(model.state_dict().values()):
            value.copy_(torch.arange(value.numel()).reshape(value.shape) * 1e-3 + index)
    model.save_pretrained(tmp_path)
    reloaded = VariantsForCausalLM.from_pretrained(tmp_path)
    for key, value in model.state_dict().items():
        assert torch.equal(reloaded.state_dict()[key], value), key
    deleted = f"model.{KEY}"
    rewrite(tmp_path, lambda tensors: tensors.pop(deleted))
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {deleted}
    assert not info["unexpected_keys"] and not info["mismatched_keys"]
    for key, value in loaded.state_dict().items():
        if key == deleted:
            assert abs(value.std().item() - 0.05) < 0.005 and abs(value.mean().item()) < 0.005
        else:
            assert torch.equal(value, model.state_dict()[key]), key


@pytest.mark.parametrize("gone", ["bias", "weight"])
def test_b02_a_part_that_is_drawn_leaves_the_rest_of_its_module(tmp_path, gone):
    """Of every module that has both, one of weight and bias is missing: it is initialised beside the loaded other."""
    biases = {"attention_bias": True, "mlp_bias": True, "lm_head_bias": True, "norm_type": "layernorm"}
    model = build(tiny("moe_biases", mlp_layer_types=["dense", "sparse"], **biases))
    model.save_pretrained(tmp_path)
    kept = model.state_dict()
    # `experts.down_proj` has `experts.down_proj_bias` beside it
    other_of = {key: key.removesuffix("_bias") if "proj_bias" in key else f"{key[: -len('bias')]}weight" for key in kept}
    pairs = {key: other for key, other in other_of.items() if key.endswith("bias") and other in kept}
    assert len(pairs) > 15
    deleted = set(pairs if gone == "bias" else pairs.values())
    rewrite(tmp_path, lambda tensors: [tensors.pop(key) for key in deleted])
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == deleted
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, kept[key]) != (key in deleted), key


def test_loading_info_with_other_shapes_must_be_asked_for(tmp_path):
    build(tiny("mha")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="ignore_mismatched_sizes=True"):
        VariantsForCausalLM.from_pretrained(tmp_path, num_key_value_heads=2, output_loading_info=True)
    _, info = VariantsForCausalLM.from_pretrained(
        tmp_path, num_key_value_heads=2, output_loading_info=True, ignore_mismatched_sizes=True
    )
    assert len(info["mismatched_keys"]) == 4


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_truncated_file(tmp_path, keep):
    build(tiny("gqa")).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.truncate(keep if isinstance(keep, int) else int(size * keep))
    with pytest.raises(ValueError, match="truncated or damaged"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_truncated_shard_and_missing_shard(tmp_path):
    build(tiny("gqa")).save_pretrained(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-8])
    with pytest.raises(ValueError, match="truncated or damaged"):
        VariantsForCausalLM.from_pretrained(tmp_path)
    shard.unlink()
    with pytest.raises(OSError, match=shard.name):
        VariantsForCausalLM.from_pretrained(tmp_path)


def test_no_weights_at_all(tmp_path):
    tiny("gqa").save_pretrained(tmp_path)
    with pytest.raises(OSError, match="model.safetensors"):
        VariantsForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("auto", [False, True])
def test_unknown_and_impossible_keys_in_config_json(tmp_path, auto):
    build(tiny("gqa")).save_pretrained(tmp_path)
    loader = AutoModelForCausalLM if auto else VariantsForCausalLM
    edit_config(tmp_path, slidng_window=4)
    with pytest.raises(ValueError, match="slidng_window.*did you mean 'sliding_window'"):
        loader.from_pretrained(tmp_path)
    edit_config(tmp_path, slidng_window=None, num_key_value_heads=3)
    with pytest.raises(ValueError, match="num_attention_heads=4 is not a multiple of num_key_value_heads=3"):
        loader.from_pretrained(tmp_path)


def test_misspelt_keyword_of_from_pretrained(tmp_path):
    build(tiny("gqa")).save_pretrained(tmp_path)
    with pytest.raises((ValueError, TypeError), match="qk_nrom"):
        AutoModelForCausalLM.from_pretrained(tmp_path, qk_nrom="head")


def test_mla_checkpoint_with_and_without_query_compression(tmp_path):
    build(VariantsConfig(**{**BASE, **MLA})).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"missing \(model.layers.0.self_attn.q_a_layernorm.weight.*q_proj.weight"):
        VariantsForCausalLM.from_pretrained(tmp_path, q_lora_rank=14)
