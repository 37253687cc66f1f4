"""Rescaled configs hold the right keys, and models turn by the published formulas."""

import json

import numpy as np
import pytest
import torch

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.context import (
    METHODS,
    expected_rotation,
    original_length,
    scale_rope,
    scaled_model,
    verify_scaling,
    with_config,
)

FACTORS = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [1.5 + 0.2 * i for i in range(8)]}
OPTIONS = {"longrope": FACTORS}


def tiny(**keys):
    base = {"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return VariantsConfig(**{**base, "max_position_embeddings": 64, **keys})


def nested(**keys):
    kinds = ("sliding_attention", "full_attention")
    rope = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in zip(kinds, (1e4, 1e6), strict=True)}
    return tiny(layer_types=list(kinds), sliding_window=8, rope_parameters=rope, **keys)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_checked_config(method):
    before = tiny(rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    after = scale_rope(before, method, 4, **OPTIONS.get(method, {}))
    assert after.max_position_embeddings == 256 and before.max_position_embeddings == 64
    assert after.rope_parameters["rope_theta"] == pytest.approx(5000.0 * (4 ** (16 / 14) if method == "theta" else 1))
    plain = method in ("none", "theta")
    assert after.rope_parameters["rope_type"] == ("default" if plain else method)
    assert plain or after.rope_parameters["factor"] == 4.0
    if method in ("dynamic", "yarn", "llama3", "longrope"):
        assert after.rope_parameters["original_max_position_embeddings"] == 64
    assert VariantsConfig(**json.loads(after.to_json_string())).rope_parameters == after.rope_parameters
    assert original_length(after) == (256 if plain else 64)


def test_options_reach_the_rule_and_unknown_ones_are_refused():
    scaled = scale_rope(tiny(), "yarn", 4, beta_fast=16, attention_factor=1.0)
    assert scaled.rope_parameters["beta_fast"] == 16 and scaled.rope_parameters["attention_factor"] == 1.0
    assert scale_rope(tiny(), "llama3", 8).rope_parameters["high_freq_factor"] == 4.0
    with pytest.raises(ValueError, match="did you mean 'beta_fast'"):
        scale_rope(tiny(), "yarn", 4, beta_fats=16)
    with pytest.raises(ValueError, match="has no effect with method='linear'"):
        scale_rope(tiny(), "linear", 4, beta_fast=16)
    with pytest.raises(ValueError, match="takes short_factor and long_factor together; long_factor alone"):
        scale_rope(tiny(), "longrope", 4, long_factor=[1.0] * 8)
    with pytest.raises(ValueError, match="must be a list of 8 numbers"):
        scale_rope(tiny(), "longrope", 4, short_factor=[1.0], long_factor=[1.0])


@pytest.mark.parametrize("kind", ["alibi", "learned", "sinusoidal", "none"])
def test_models_without_rope_are_refused(kind):
    with pytest.raises(ValueError, match=f"position_embedding_type='{kind}' has no rotary"):
        scale_rope(tiny(position_embedding_type=kind), "yarn", 4)


@pytest.mark.parametrize("factor", [0.5, 0, -1, "4", True, float("nan"), float("inf")])
def test_bad_factors_are_refused(factor):
    with pytest.raises(ValueError, match="at least 1"):
        scale_rope(tiny(), "linear", factor)


def test_unknown_method_names_the_closest():
    with pytest.raises(ValueError, match="did you mean 'yarn'"):
        scale_rope(tiny(), "yarm", 4)
    with pytest.raises(ValueError, match="layers='some'"):
        scale_rope(tiny(), "yarn", 4, layers="some")


def test_scaled_configs_are_left_alone_unless_forced():
    once = scale_rope(tiny(), "linear", 2)
    with pytest.raises(ValueError, match="already scaled .*linear.* force=True"):
        scale_rope(once, "yarn", 4)
    again = scale_rope(once, "yarn", 8, force=True)
    assert again.rope_parameters["rope_type"] == "yarn" and again.max_position_embeddings == 512
    assert again.rope_parameters["original_max_position_embeddings"] == 64
    assert "factor" not in scale_rope(again, "none", 1, force=True).rope_parameters


def test_nested_rope_scales_only_full_layers():
    after = scale_rope(nested(), "yarn", 4)
    assert after.rope_parameters["sliding_attention"] == {"rope_type": "default", "rope_theta": 1e4}
    assert after.rope_parameters["full_attention"]["rope_type"] == "yarn"
    assert after.rope_parameters["full_attention"]["rope_theta"] == 1e6
    both = scale_rope(nested(), "yarn", 4, layers="all").rope_parameters
    assert {rope["rope_type"] for rope in both.values()} == {"yarn"}


def test_flat_rope_becomes_nested_when_only_full_layers_are_wanted():
    config = tiny(layer_types=["sliding_attention", "full_attention"], sliding_window=8)
    assert scale_rope(config, "ntk", 4).rope_parameters["rope_type"] == "ntk"
    after = scale_rope(config, "ntk", 4, layers="full_attention")
    assert after.rope_parameters["sliding_attention"]["rope_type"] == "default"
    assert after.rope_parameters["full_attention"]["rope_type"] == "ntk"
    all_full = scale_rope(tiny(), "ntk", 4, layers="full_attention")
    assert all_full.rope_parameters["rope_type"] == "ntk"


def test_nothing_to_scale_is_refused():
    with pytest.raises(ValueError, match="no 'full_attention' entry"):
        scale_rope(tiny(sliding_window=8), "yarn", 4, layers="full_attention")
    rope = {"sliding_attention": {"rope_type": "default"}, "full_attention": None}
    config = tiny(layer_types=["sliding_attention", "full_attention"], sliding_window=8, rope_parameters=rope)
    with pytest.raises(ValueError, match="pass layers='all'"):
        scale_rope(config, "yarn", 4)
    assert scale_rope(config, "yarn", 4, layers="all").rope_parameters["full_attention"] is None


MODELS = {
    "gqa": {},
    "partial": {"partial_rotary_factor": 0.5, "head_dim": 32},
    "mla": {"attention_type": "mla", "kv_lora_rank": 24, "qk_rope_head_dim": 16},
    "nope-on-one": {"no_rope_layers": [1, 0]},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_models_turn_by_the_formulas(name, method):
    model = VariantsForCausalLM(tiny(**MODELS[name]))
    scaled = scaled_model(model, method, 4, **OPTIONS.get(method, {}))
    report = verify_scaling(scaled, model.config)
    assert report.ok, report.failures
    row = report.rows[0]
    assert row["relative_error"] < 1e-6 and row["frequencies"] == 8 and report.reloads_equal
    assert (report.context_before, report.context_after) == (64, 256)
    assert row["changed"] == {"none": 0, "linear": 8, "longrope": 8}.get(method, row["changed"])
    assert method == "none" or row["changed"] >= 6
    ids = torch.randint(50, (1, 200))
    with torch.no_grad():
        difference = (scaled.eval()(ids).logits - model.eval()(ids).logits).abs().max().item()
    assert (difference == 0) == (method == "none")


def test_theta_alone():
    config = tiny()
    assert scale_rope(config, "theta", 4, rope_theta=500000).rope_parameters == {
        "rope_type": "default",
        "rope_theta": 500000.0,
    }
    ntk, _ = expected_rotation(scale_rope(config, "ntk", 4).rope_parameters, 16, 256)
    raised, factor = expected_rotation(scale_rope(config, "theta", 4).rope_parameters, 16, 256)
    assert raised == pytest.approx(ntk, rel=1e-12) and factor == 1.0
    with pytest.raises(ValueError, match="rope_theta=10.0 is less than the"):
        scale_rope(config, "theta", 4, rope_theta=10.0)
    after = scale_rope(nested(), "theta", 4).rope_parameters
    assert after["sliding_attention"]["rope_theta"] == 1e4 and after["full_attention"]["rope_theta"] > 1e6
    # no other rule may touch the base
    doubled = scale_rope(config, "linear", 4)
    doubled.rope_parameters = {**doubled.rope_parameters, "rope_theta": 2 * config.rope_parameters["rope_theta"]}
    failures = verify_scaling(VariantsForCausalLM(doubled), config).failures
    assert any("rope_theta changed" in failure for failure in failures)


def test_longrope_without_a_search_is_yarns_ramp():
    rope = scale_rope(tiny(), "longrope", 4).rope_parameters
    yarn, _ = expected_rotation(scale_rope(tiny(), "yarn", 4).rope_parameters, 16, 256)
    long, _ = expected_rotation(rope, 16, 256)
    assert long == pytest.approx(yarn, rel=1e-12) and rope["short_factor"] == [1.0] * 8


def test_yarn_bands_and_temperature():
    """Hand-computed: 64 tokens, theta 10000, 16 dimensions."""
    rope = scale_rope(tiny(), "yarn", 4).rope_parameters
    frequencies, attention_factor = expected_rotation(rope, 16, 256)
    unscaled = 10000.0 ** (-np.arange(8) / 8)
    assert attention_factor == pytest.approx(0.1 * np.log(4) + 1)
    assert frequencies[0] == unscaled[0]
    turns = 64 * unscaled / (2 * np.pi)
    assert np.allclose(frequencies[turns < 0.5], unscaled[turns < 0.5] / 4)


@pytest.mark.parametrize("method", ["linear", "dynamic", "yarn", "llama3", "longrope"])
@pytest.mark.parametrize("length", [64, 65, 200])
def test_formulas_equal_transformers(method, length):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = scale_rope(tiny(), method, 4, **OPTIONS.get(method, {})).rope_parameters
    native = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=64, rope_parameters=rope)
    inv_freq, factor = ROPE_INIT_FUNCTIONS[method](native, seq_len=length)
    frequencies, expected_factor = expected_rotation(rope, 16, length)
    assert np.abs(inv_freq.numpy() / frequencies - 1).max() < 1e-6
    assert factor == pytest.approx(expected_factor, abs=1e-12)


def test_a_rule_that_did_not_take_effect_is_reported():
    model = VariantsForCausalLM(tiny())
    fake = VariantsForCausalLM(tiny())
    fake.config.rope_parameters = scale_rope(model.config, "yarn", 4).rope_parameters
    fake.config.max_position_embeddings = 256
    report = verify_scaling(fake, model.config)
    assert not report.ok
    text = "; ".join(report.failures)
    assert "differ from the formula" in text and "attention factor" in text and "no frequency did" in text


def test_changed_theta_is_reported():
    model = VariantsForCausalLM(tiny(rope_parameters={"rope_type": "default", "rope_theta": 5000.0}))
    assert "rope_theta changed" in verify_scaling(model, tiny()).failures[0]


def test_the_twin_shares_its_weights():
    model = VariantsForCausalLM(tiny(tie_word_embeddings=True))
    twin = scaled_model(model, "linear", 2)
    assert all(ours is theirs for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True))
    assert twin.lm_head.weight is twin.model.embed_tokens.weight
    same = with_config(model.eval(), model.config)
    ids = torch.randint(50, (2, 30))
    assert torch.equal(same(ids).logits, model(ids).logits) and not same.training


def test_the_twin_refuses_other_weights():
    model = VariantsForCausalLM(tiny())
    with pytest.raises(ValueError, match="means other weights"):
        with_config(model, tiny(qk_norm="head"))
    with pytest.raises(ValueError, match="means other weights"):
        with_config(model, tiny(vocab_size=51))


def test_mla_attention_scale_follows_yarn():
    """DeepSeek's mscale_all_dim multiplies the attention scale by (0.1 ln f + 1)^2 and leaves cosines alone."""
    model = VariantsForCausalLM(tiny(**MODELS["mla"]))
    scaled = scaled_model(model, "yarn", 4, mscale=1.0, mscale_all_dim=1.0)
    ratio = scaled.model.layers[0].self_attn.scaling / model.model.layers[0].self_attn.scaling
    assert ratio == pytest.approx((0.1 * np.log(4) + 1) ** 2)
    assert verify_scaling(scaled, model.config).rows[0]["attention_factor"] == pytest.approx(1.0)
