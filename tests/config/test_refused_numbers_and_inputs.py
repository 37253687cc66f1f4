"""Numbers that are none, attributes that are no keys, and inputs of the wrong shape are refused by name, at once."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import hf_variants
from hf_variants import VariantsConfig, VariantsForCausalLM

SHAPE = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["norm_eps", "final_logit_softcapping", "residual_multiplier", "initializer_range"])
def test_numbers_are_finite(name, value):
    with pytest.raises(ValueError, match=f"{name}=.* must be a finite number"):
        VariantsConfig(**SHAPE, **{name: value})


@pytest.mark.parametrize(
    "rope, match",
    [
        ({"rope_type": "linear", "factor": math.inf}, "factor=inf"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 32}, "beta_fast=1 must be greater"),
    ],
)
def test_rope_numbers(rope, match):
    with pytest.raises(ValueError, match=match):
        VariantsConfig(**SHAPE, rope_parameters=rope)


def test_two_thetas_that_disagree():
    with pytest.raises(ValueError, match="disagree"):
        VariantsConfig(**SHAPE, rope_theta=1e4, rope_parameters={"rope_type": "default", "rope_theta": 5e4})


def test_attribute_that_is_no_key(tmp_path):
    config = VariantsConfig(**SHAPE)
    model = VariantsForCausalLM(config)
    model.config.qk_nrom = "head"
    with pytest.raises(ValueError, match="qk_nrom is no key of VariantsConfig \\(did you mean 'qk_norm'"):
        VariantsForCausalLM(model.config)
    model.save_pretrained(tmp_path)  # what was trained is saved all the same, and loads
    assert model.config.qk_nrom == "head"
    assert not hasattr(AutoModelForCausalLM.from_pretrained(tmp_path).config, "qk_nrom")


def test_misspelt_override_while_loading(tmp_path):
    VariantsForCausalLM(VariantsConfig(**SHAPE)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'qk_nrm' is neither .* \\(did you mean 'qk_norm'"):
        AutoModelForCausalLM.from_pretrained(tmp_path, qk_nrm="head")


@pytest.mark.parametrize(
    "inputs, match",
    [
        ({"input_ids": torch.ones(5, dtype=torch.long)}, "input_ids has the shape \\(5,\\)"),
        ({"input_ids": torch.ones(2, 0, dtype=torch.long)}, "at least one token"),
        ({"attention_mask": torch.ones(3, 5)}, "attention_mask has 3 rows"),
        ({"attention_mask": torch.ones(2, 4)}, "attention_mask has 4 columns"),
        ({"position_ids": torch.arange(4)[None]}, "position_ids has the shape \\(1, 4\\)"),
    ],
)
def test_inputs_of_the_wrong_shape(inputs, match):
    model = VariantsForCausalLM(VariantsConfig(**SHAPE))
    with pytest.raises(ValueError, match=match):
        model(**{"input_ids": torch.ones(2, 5, dtype=torch.long), **inputs})


def test_negative_position_of_a_learned_table():
    model = VariantsForCausalLM(VariantsConfig(**SHAPE, position_embedding_type="learned"))
    with pytest.raises(ValueError, match="position -1 is negative"):
        model(torch.ones(1, 2, dtype=torch.long), position_ids=torch.tensor([[-1, 0]]))


@pytest.fixture
def native(tmp_path):
    shape = {**SHAPE, "intermediate_size": 32}
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(tmp_path)
    return tmp_path


def test_truncated_native_weights(native):
    file = native / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ValueError, match="truncated or damaged"):
        hf_variants.convert.from_native(native)


def test_native_config_that_transformers_does_not_know(native):
    file = native / "config.json"
    file.write_text(file.read_text().replace('"silu"', '"sillu"'))
    with pytest.raises(ValueError, match="sillu"):
        hf_variants.convert.from_native(native)


def test_no_native_config(tmp_path):
    with pytest.raises(ValueError, match="no config found"):
        hf_variants.convert.from_native(tmp_path / "nothing")
