"""Known failures of other conversions, each by its number in the collection, checked against the native classes."""

import math

import pytest
import torch
from native_cases import native_config, native_model, token_ids

from hf_variants.convert import config_from_native, config_to_native, from_native, to_native
from hf_variants.modeling.configuration_variants import VariantsConfig


@torch.no_grad()
def _gap(native, length=14):
    ids = token_ids(2, length)
    return (from_native(native)(input_ids=ids).logits - native(input_ids=ids).logits).abs().max().item()


def _bitwise_back(native):
    back = to_native(from_native(native)).state_dict()
    return all(torch.equal(tensor, back[name]) for name, tensor in native.state_dict().items())


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_b33_query_heads_share_keys_in_the_native_order(kv_heads):
    assert _gap(native_model("llama", "tied_biased", num_key_value_heads=kv_heads)) <= 1e-5


@pytest.mark.parametrize(
    ("family", "name"),
    [("llama", "tied_biased"), ("qwen2", "full"), ("phi3", "tied_partial_window"), ("deepseek_v3", "groups")],
)
def test_b34_rope_layout_with_few_key_heads_biases_and_partial_rotation(family, name):
    native = native_model(family, name)
    assert _gap(native) <= 1e-5
    assert _bitwise_back(native)


@pytest.mark.parametrize("interleave", [True, False])
@pytest.mark.parametrize("q_lora_rank", [20, None])
def test_b35_latent_attention_in_both_rope_forms(interleave, q_lora_rank):
    native = native_model("deepseek_v3", "groups", rope_interleave=interleave, q_lora_rank=q_lora_rank)
    assert _gap(native) <= 1e-5
    ours = from_native(native)
    assert ours.config.rope_interleaved is interleave
    ours.config.rope_interleaved = not interleave
    wrong = type(ours)(ours.config).eval()
    wrong.load_state_dict(ours.state_dict())
    ids = token_ids(2, 14)
    with torch.no_grad():
        assert (wrong(input_ids=ids).logits - native(input_ids=ids).logits).abs().max().item() > 1e-2


@pytest.mark.parametrize(
    ("extra", "scale"),
    [({}, 1.0), ({"attention_factor": 1.0}, 1.0), ({"mscale": 1.0, "mscale_all_dim": 1.0}, (0.1 * math.log(4) + 1) ** 2)],
)
def test_b36_yarn_factors_on_latent_attention(extra, scale):
    """mscale_all_dim acts on the score scale, attention_factor on the rotation, and neither twice."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 1e4, **extra}
    native = native_model("deepseek_v3", "groups", rope_parameters=rope)
    assert _gap(native) <= 1e-5
    plan = config_from_native(native.config).layer_plan()[0]
    assert plan.scaling == pytest.approx(scale * 16**-0.5, rel=1e-12)
    assert native.model.layers[0].self_attn.scaling == pytest.approx(plan.scaling, rel=1e-12)


def test_b37_a_given_longrope_factor_is_not_overridden():
    gaps, factors = [], []
    for factor in (2.5, 6.0):
        native = native_model("llama", "longrope")
        rope = {**native.config.rope_parameters, "factor": factor}
        native = native_model("llama", "longrope", rope_parameters=rope)
        gaps.append(_gap(native))
        factors.append(config_from_native(native.config).rope_parameters["factor"])
    assert max(gaps) <= 1e-5
    assert factors == [2.5, 6.0]


def test_b38_old_and_new_rope_keys_mean_the_same():
    old = config_from_native(native_config("llama", "plain", rope_theta=3e4, rope_scaling={"type": "linear", "factor": 2.0}))
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4}
    new = config_from_native(native_config("llama", "plain", rope_parameters=rope))
    assert old.rope_parameters == new.rope_parameters == rope
    assert config_to_native(VariantsConfig.from_dict(new.to_dict())).rope_parameters == rope


def test_b38_partial_rotation_is_applied_once():
    config = config_from_native(native_config("phi3", "tied_partial_window"))
    assert config.rotary_dim_of("default") == 4
    assert config_to_native(config).rope_parameters["partial_rotary_factor"] == 0.5


def test_b38_nested_rope_survives_json(tmp_path):
    native = native_config("gemma3_text", "scaled_full")
    config_from_native(native).save_pretrained(tmp_path)
    assert config_to_native(VariantsConfig.from_pretrained(tmp_path)).rope_parameters == native.rope_parameters


def test_b40_tied_keys_are_a_dict():
    ours = from_native(native_model("llama", "tied_biased"))
    assert ours._tied_weights_keys == {"lm_head.weight": "model.embed_tokens.weight"}


@pytest.mark.parametrize(
    ("family", "name", "kind", "shape"),
    [("olmo2", "plain", "full", (16,)), ("qwen3", "wide_heads", "head", (12,)), ("gemma3_text", "pattern", "head", (12,))],
)
def test_b56_kinds_of_qk_norm(family, name, kind, shape):
    native = native_model(family, name)
    assert _gap(native) <= 1e-5
    ours = from_native(native)
    assert ours.config.qk_norm == kind
    assert tuple(ours.model.layers[0].self_attn.k_norm.weight.shape) == shape


@pytest.mark.parametrize(
    ("family", "name"), [("bloom", "plain"), ("gpt2", "plain"), ("phi3", "plain"), ("falcon", "40b_biased")]
)
def test_b67_fused_projections(family, name):
    native = native_model(family, name)
    assert _gap(native) <= 1e-5
    assert _bitwise_back(native)


def test_b69_no_partial_load():
    native = native_model("llama", "plain")
    del native.model.layers[1].self_attn.k_proj
    with pytest.raises(ValueError, match=r"1 missing: model\.layers\.1\.self_attn\.k_proj\.weight"):
        from_native(native)
