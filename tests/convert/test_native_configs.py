"""Configs there and back: what is kept, what the toggles decide, what is refused and why."""

import copy
import re

import pytest
from native_cases import CASE_IDS, CASES, native_config
from transformers import CONFIG_MAPPING

from hf_variants.convert import config_from_native, config_to_native, family_names, find_family
from hf_variants.convert.config_conversion import _written, as_plain_dict
from hf_variants.convert.expression import Inexpressible
from hf_variants.convert.left_out import LEFT_OUT
from hf_variants.modeling.configuration_variants import VariantsConfig

FOURTEEN = """bloom deepseek_v3 gemma2 gemma3_text gpt2 gpt_oss llama mistral mixtral olmo2 phi3 qwen2 qwen3 qwen3_moe"""


def test_every_family_has_cases():
    decoders = [name for name in family_names() if "causal_lm" in find_family(name).heads]
    assert decoders == sorted({family for family, _ in CASES})
    assert set(FOURTEEN.split()) <= set(family_names())


# Natively one key-value head per query head, and heads that divide the width.
_MANY_HEADS = (
    *"biogpt bloom codegen ctrl gpt2 gpt_neo gpt_neox gptj modernbert-decoder mpt openai-gpt opt persimmon xglm".split(),
    "bert-generation",
)
_FEW_WAYS = {
    **dict.fromkeys(_MANY_HEADS, {"grouped heads", "one key-value head", "head_dim of its own"}),
    **dict.fromkeys(("dbrx", "falcon", "helium", "olmoe", "stablelm", "cohere_compass_text"), {"head_dim of its own"}),
    "gpt_bigcode": {"grouped heads", "head_dim of its own"},
}
_FEW_WAYS["codegen"] = _FEW_WAYS["gptj"] = {*_FEW_WAYS["gptj"], "scaled rope"}  # the frequencies are fixed
_FEW_WAYS["dbrx"] = {*_FEW_WAYS["dbrx"], "tied"}  # refused natively
# Switches without effect on the model, or of which one side is refused.
_DEAD = {
    *("use_cache", "output_router_logits", "is_encoder_decoder", "is_decoder", "return_dict", "output_hidden_states"),
    *("output_attentions", "add_cross_attention", "summary_use_proj", "summary_proj_to_labels", "enable_moe_fp32_combine"),
    *("slow_but_exact", "use_bidirectional_attention", "mamba_conv_bias", "mamba_proj_bias", "learned_pos_emb", "no_bias"),
    *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
}
_DEAD_OF = {("deepseek_v2", "norm_topk_prob"), ("cwm", "mlp_bias")}


def _ways(native, config):
    """What one case tries, and which side of each native switch."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    ropes = [config.rope_of(key)["rope_type"] for key in config.rope_keys]
    tried = {
        "tied": config.tie_word_embeddings,
        "untied": not config.tie_word_embeddings,
        "grouped heads": 1 < kv_heads < heads,
        "one key-value head": kv_heads == 1,
        "head_dim of its own": config.head_dim * heads != config.hidden_size,
        "scaled rope": any(kind != "default" for kind in ropes),
    }
    switches = {(name, value) for name, value in as_plain_dict(native).items() if isinstance(value, bool)}
    return {name for name, true in tried.items() if true} | switches


@pytest.mark.parametrize("family", dict(CASES))
def test_every_family_is_tried_both_ways(family):
    """Tied and not, each switch on and off, grouped and single key-value heads, heads of their own width, scaled RoPE."""
    natives = [native_config(family, name) for known, name in CASES if known == family]
    configs = [config_from_native(native) for native in natives]
    tried = set().union(*(_ways(*pair) for pair in zip(natives, configs, strict=True)))
    switches = {entry[0] for entry in tried if isinstance(entry, tuple)} - _DEAD
    switches -= {name for known, name in _DEAD_OF if known == family} | {"tie_word_embeddings"}
    wanted = {"tied", "untied"} | {(name, value) for name in switches for value in (True, False)}
    if any(config.position_embedding_type == "rope" for config in configs):
        wanted.add("scaled rope")
    if any(config.attention_type != "mla" for config in configs):
        wanted |= {"grouped heads", "one key-value head", "head_dim of its own"}
    assert wanted - tried == _FEW_WAYS.get(family, set()) & wanted


@pytest.mark.parametrize(("family", "name"), CASES, ids=CASE_IDS)
def test_config_round_trip_through_json(family, name, tmp_path):
    native = native_config(family, name)
    config_from_native(native).save_pretrained(tmp_path)
    back = config_to_native(VariantsConfig.from_pretrained(tmp_path))
    assert type(back) is type(native)
    assert as_plain_dict(back) == as_plain_dict(native)


@pytest.mark.parametrize("family", family_names())
def test_config_of_the_native_defaults(family):
    native = CONFIG_MAPPING[family](**find_family(family).needs)
    assert as_plain_dict(config_to_native(config_from_native(native))) == as_plain_dict(native)


def test_dead_native_keys_stay_native():
    config = config_from_native(native_config("gemma3_text", "dead_cap", rope_parameters=None))
    assert config.attn_logit_softcapping is None
    assert config.native == {"model_type": "gemma3_text", "config": {"attn_logit_softcapping": 0.5}}


def test_aux_loss_needs_router_logits():
    """Natively the coefficient acts only while router logits are returned."""
    silent = config_from_native(native_config("mixtral", "silent_coefficient"))
    assert (silent.router_balance, silent.router_aux_loss_coef) == ("none", 0.0)
    assert silent.native["config"]["router_aux_loss_coef"] == 0.02
    balanced = config_from_native(native_config("mixtral", "balanced"))
    assert (balanced.router_balance, balanced.router_aux_loss_coef) == ("aux_loss", 0.5)


def test_a_token_beyond_the_vocabulary_stays_native():
    native = native_config("llama", "plain", eos_token_id=[2, 900], bos_token_id=900)
    config = config_from_native(native)
    assert (config.eos_token_id, config.bos_token_id) == ([2], None)
    back = config_to_native(config)
    assert (back.eos_token_id, back.bos_token_id) == ([2, 900], 900)


# ---- the toggles win over what was kept ----
def test_changed_toggles_are_written():
    config = config_from_native(native_config("llama", "old_keys"))
    changed = VariantsConfig(**{**_keywords(config), "rope_parameters": {"rope_type": "default", "rope_theta": 7e4}})
    back = config_to_native(changed)
    assert back.rope_parameters == {"rope_type": "default", "rope_theta": 7e4}
    assert back.pretraining_tp == 2


def test_changed_layers_drop_what_was_kept_for_the_old_ones():
    config = config_from_native(native_config("qwen2", "unused_window"))
    changed = VariantsConfig(
        **{**_keywords(config), "sliding_window": 9, "layer_types": ["sliding_attention"] + ["full_attention"] * 2}
    )
    back = config_to_native(changed)
    assert (back.use_sliding_window, back.sliding_window) == (True, 9)
    assert back.layer_types == ["sliding_attention", "full_attention", "full_attention"]


def test_switching_balancing_on_writes_the_native_switch():
    config = config_from_native(native_config("mixtral", "silent_coefficient"))
    config.router_balance, config.router_aux_loss_coef = "aux_loss", 0.1
    back = config_to_native(config)
    assert (back.output_router_logits, back.router_aux_loss_coef) == (True, 0.1)


def _keywords(config):
    from dataclasses import fields

    own = {f.name for f in fields(VariantsConfig)} & set(VariantsConfig.__annotations__)
    return {name: copy.deepcopy(getattr(config, name)) for name in own}


# ---- what a family cannot express ----
@pytest.mark.parametrize(
    ("family", "name", "changes", "named"),
    [
        ("llama", "plain", {"attention_sinks": True}, ["attention_sinks"]),
        ("llama", "plain", {"attn_logit_softcapping": 30.0, "qk_norm": "l2"}, ["attn_logit_softcapping", "qk_norm"]),
        ("llama", "plain", {"attention_out_bias": True}, ["attention_out_bias"]),
        ("llama", "plain", {"no_rope_layers": [1, 0, 1]}, ["no_rope_layers"]),
        ("llama", "plain", {"rope_interleaved": True}, ["rope_interleaved"]),
        ("llama", "plain", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
        ("llama", "plain", {"attention_multiplier": 0.2}, ["attention_multiplier"]),
        ("llama", "plain", {"position_embedding_type": "alibi", "rope_parameters": None}, ["position_embedding_type"]),
        ("mistral", "window", {"layer_types": ["sliding_attention"] * 2 + ["full_attention"]}, ["layer_types"]),
        ("qwen2", "full", {"attention_bias": False}, ["attention_bias"]),
        ("gemma2", "window", {"embedding_multiplier": 2.0}, ["embedding_multiplier"]),
        ("gemma2", "window", {"sliding_window": 5, "norm_unit_offset": False}, ["norm_unit_offset"]),
        ("mixtral", "plain", {"num_shared_experts": 1, "shared_expert_intermediate_size": 24}, ["num_shared_experts"]),
        (
            "mixtral",
            "plain",
            {"router_z_loss_coef": 0.1, "router_scoring": "sigmoid"},
            ["router_scoring", "router_z_loss"],
        ),
        ("mixtral", "plain", {"mlp_layer_types": ["dense", "sparse", "sparse"]}, ["mlp_layer_types"]),
        ("deepseek_v3", "groups", {"mlp_layer_types": ["sparse", "dense", "sparse"]}, ["mlp_layer_types"]),
        ("deepseek_v3", "groups", {"latent_norm_eps": 1e-5}, ["latent_norm_eps"]),
        ("gpt_oss", "yarn", {"swiglu_limit": None, "swiglu_alpha": None}, ["swiglu_limit", "swiglu_alpha"]),
        ("gpt2", "plain", {"position_embedding_offset": 2}, ["position_embedding_offset"]),
        ("bloom", "plain", {"intermediate_size": 100, "hidden_act": "relu"}, ["intermediate_size", "hidden_act"]),
        ("bloom", "plain", {"norm_placement": "parallel"}, ["norm_placement"]),
        ("cohere2", "pattern", {"no_rope_layers": [1, 1, 1]}, ["no_rope_layers"]),
        ("gptj", "partial", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}}, ["rope_parameters"]),
        ("gpt_bigcode", "mqa", {"num_key_value_heads": 2}, ["num_key_value_heads"]),
        ("codegen", "partial", {"lm_head_bias": False}, ["lm_head_bias"]),
        ("olmo", "clipped", {"norm_affine": True}, ["norm_affine"]),
        ("llama", "plain", {"clip_qkv": 3.0, "qk_norm": "per_head"}, ["clip_qkv", "qk_norm"]),
        ("dots1", "window", {"num_shared_experts": 1, "shared_expert_intermediate_size": 20}, ["shared_expert_inter"]),
        ("ernie4_5_moe", "tied", {"mlp_layer_types": ["sparse", "dense", "dense"], "lm_head_bias": True}, ["lm_head_bias"]),
        ("granitemoe", "plain", {"router_scoring": "sigmoid"}, ["router_scoring"]),
    ],
)
def test_inexpressible_toggles_are_all_named(family, name, changes, named):
    config = VariantsConfig(**{**_keywords(config_from_native(native_config(family, name))), **changes})
    with pytest.raises(Inexpressible, match=f"{family} cannot express") as error:
        _written(find_family(family), config)  # without the search for families that could, which takes its time
    for toggle in named:
        assert toggle in str(error.value)


_TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("toggles", "said"),
    [
        ({"qk_norm": "head"}, "families that can: qwen3,"),
        ({"sliding_window": 4}, "families that can: mistral,"),
        ({"mlp_type": "plain"}, "families that can: arcee"),
        ({"attn_logit_softcapping": 5.0}, "no known family can .*attn_logit_softcapping by gemma2"),
        (
            {"attention_sinks": True, "qk_norm": "full"},
            "no known family can .*attention_sinks by gpt_oss.*; qk_norm by olmo2",
        ),
        ({"position_embedding_type": "sinusoidal"}, "position_embedding_type by none found"),
    ],
)
def test_refusals_name_the_families_that_could(toggles, said):
    config = VariantsConfig(**_TINY, **toggles)
    with pytest.raises(ValueError, match="^llama cannot express") as error:
        config_to_native(config, "llama")
    text = str(error.value)
    assert re.search(said, text), text
    assert all(f"{name}=" in text for name in toggles)
    for family in re.sub(r" and \d+ more", "", text.partition("families that can: ")[2]).split(", "):
        assert not family or config_to_native(config, family).model_type == family


def test_a_native_config_that_cannot_be_read_still_names_the_toggles():
    """DeepSeek-V3 without a shared expert fails natively; that its attention is another is said too."""
    config = VariantsConfig(**_TINY, num_experts=4, moe_intermediate_size=16)
    with pytest.raises(ValueError, match="deepseek_v3 cannot express") as error:
        config_to_native(config, "deepseek_v3")
    for part in ("attention_type='gqa' (deepseek_v3 means 'mla')", "n_shared_experts=0", "families that"):
        assert part in str(error.value)


# ---- models that never were native ----
@pytest.mark.parametrize(
    ("toggles", "expected"),
    [
        ({}, "llama"),
        ({"attention_bias": True, "attention_out_bias": False}, "qwen2"),
        ({"qk_norm": "head", "head_dim": 48}, "qwen3"),
        ({"sliding_window": 16}, "mistral"),
        ({"norm_placement": "post", "qk_norm": "full", "norm_weight_in_fp32": True}, "olmo2"),
        ({"num_experts": 4}, "mixtral"),
        ({"num_experts": 4, "qk_norm": "head", "mlp_layer_types": ["dense"] + ["sparse"] * 7}, "qwen3_moe"),
        ({"partial_rotary_factor": 0.5}, "phi3"),
        ({"attention_type": "mla", "rope_interleaved": True, "q_lora_rank": 32}, "deepseek_v3"),
        ({"rope_parameters": {"rope_type": "ntk", "factor": 4.0, "rope_theta": 1e4}}, "llama"),
    ],
)
def test_the_first_family_that_fits(toggles, expected):
    assert config_to_native(VariantsConfig(**toggles)).model_type == expected


def test_static_ntk_is_written_as_its_base():
    config = VariantsConfig(rope_parameters={"rope_type": "ntk", "factor": 4.0, "rope_theta": 1e4})
    dim = config.head_dim
    native = config_to_native(config, "llama")
    assert native.rope_parameters == {"rope_type": "default", "rope_theta": 1e4 * 4.0 ** (dim / (dim - 2))}


def test_a_family_can_be_named():
    native = config_to_native(VariantsConfig(), "mistral")
    assert (native.model_type, native.sliding_window, native.pad_token_id) == ("mistral", None, None)


def test_no_family_fits():
    with pytest.raises(ValueError, match=r"closest native family.*attention_sinks=True.*attention_sinks by gpt_oss"):
        config_to_native(VariantsConfig(attention_sinks=True))


def test_a_type_left_out_says_why():
    with pytest.raises(ValueError, match="'jetmoe' cannot be converted: no toggle means experts for queries"):
        config_to_native(VariantsConfig(), "jetmoe")
    assert not set(LEFT_OUT) & set(family_names())
    assert set(LEFT_OUT) <= set(CONFIG_MAPPING)


def test_a_multiplier_and_a_divisor_are_each_others_inverse():
    """Every divisor has a float that divides into it again, so that the way back cannot miss by a rounding."""
    for divisor in (0.3, 7.0, 1.1, 16.0, 3.7e-2, 1 / 3):
        config = VariantsConfig(logits_scaling=divisor, norm_type="layernorm", norm_bias=False, norm_weight_in_fp32=True,
                                norm_placement="parallel", rope_interleaved=True)  # fmt: skip
        native = config_to_native(config, "cohere")
        assert abs(native.logit_scale * divisor - 1) <= 1e-15


def test_an_unknown_family_names_the_nearest():
    with pytest.raises(ValueError, match="'lama' cannot be converted.*nearest known: llama"):
        config_to_native(VariantsConfig(), "lama")


# ---- native configs that ours cannot mean ----
_LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "short_mscale": 1.0, "long_mscale": 1.0}


@pytest.mark.parametrize(
    ("family", "name", "changes", "reason"),
    [
        ("mistral4", "tempered", {"n_group": 2}, "n_group=2.*its two best"),
        ("mistral4", "tempered", {"head_dim": 12}, "rope_parameters.*qk_rope_head_dim / head_dim"),
        (
            *("mistral4", "tempered"),
            {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 9}},
            "use a scaled rope_type",
        ),
        ("cohere_compass_text", "two_thetas", {"logit_scale": 0.0}, "logit_scale=0.0"),
        ("cohere_compass_text", "no_rope", {"rope_parameters": {}}, "rope_parameters=.*fails without an entry"),
        ("bert-generation", "tied", {"is_decoder": False}, "is_decoder=False.*what follows"),
        ("bert-generation", "tied", {"add_cross_attention": True}, "add_cross_attention=True"),
        ("bloom", "plain", {"slow_but_exact": True, "pretraining_tp": 2}, "slow_but_exact.*drops the biases"),
        ("gpt2", "plain", {"add_cross_attention": True}, "add_cross_attention"),
        ("gemma2", "window", {"use_bidirectional_attention": True}, "use_bidirectional_attention.*backend"),
        ("gemma3_text", "pattern", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("mistral", "window", {"layer_types": ["sliding_attention", "full_attention"] * 2}, "layer_types.*cache"),
        ("deepseek_v3", "groups", {"n_group": None, "topk_group": None}, "n_group.*n_group=1"),
        ("deepseek_v3", "groups", {"n_shared_experts": 0}, "n_shared_experts"),
        ("deepseek_v3", "groups", {"num_key_value_heads": 2}, "num_key_value_heads"),
        ("llama", "linear", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("granite_swa", "pattern", {"layer_rope_theta": [1e4, 1e4, 2e4]}, "layer_rope_theta.*sliding_attention"),
        ("cohere2_moe", "sigmoid_rms", {"shared_expert_combination_strategy": "average"}, "strategy.*average"),
        ("phimoe", "balanced", {"rope_parameters": {**_LINEAR}}, "rope_parameters.*short_mscale"),
        ("ministral3", "yarn", {"rope_parameters": _LINEAR}, "rope_parameters.*llama_4_scaling_beta"),
        ("llama4_text", "chunks", {"attention_chunk_size": None}, "attention_chunk_size.*fails"),
        ("llama4_text", "chunks", {"layer_types": ["sliding_attention"] * 3}, "layer_types.*no mask"),
        ("afmoe", "pattern", {"num_shared_experts": 0}, "num_shared_experts.*at least 1"),
        ("granitemoehybrid", "experts", {"layer_types": ["linear_attention"] * 3}, "layer_types.*state-space"),
        ("granitemoehybrid", "experts", {"shared_intermediate_size": 0}, "shared_intermediate_size.*granitemoe"),
        ("modernbert-decoder", "pattern", {"local_attention": 1}, "local_attention.*at least 2"),
        ("kolibri1", "no_rope", {"sliding_window": None}, "sliding_window.*masks fail"),
        ("ctrl", "tied", {"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon.*last norm alone"),
        ("openai-gpt", "tied", {"afn": "tanh"}, "afn='tanh'.*gelu"),
        ("falcon", "40b_biased", {"parallel_attn": False}, "new_decoder_architecture.*fails"),
        ("falcon", "sequential", {"attention_dropout": 0.1}, "attention_dropout.*one value"),
        ("cohere", "tied", {"logit_scale": None}, "logit_scale.*1.0"),
        ("helium", "plain", {"head_dim": 12}, "head_dim"),
        ("xglm", "scaled", {"pad_token_id": 3}, "pad_token_id.*real position"),
        ("codegen", "partial", {"n_head": 6}, "n_head.*four"),
        ("deepseek_v2", "greedy", {"topk_method": "noaux_tc"}, "topk_method.*greedy"),
        ("dbrx", "clipped", {"attn_config": {"rope_theta": 1e4}}, "attn_config.clip_qkv=None.*fails"),
        ("dots1", "window", {"n_group": None}, "n_group"),
        ("minimax_m2", "tied", {"output_router_logits": True}, "output_router_logits.*softmax"),
        ("ernie4_5_moe", "tied", {"moe_norm_min": 0.5}, "moe_norm_min"),
        ("hunyuan_v1_moe", "list_alpha", {"moe_topk": [1, 2, 2]}, "moe_topk.*every layer"),
        ("aria_text", "plain", {"hidden_act": "gelu"}, "hidden_act.*shared"),
        ("gemma", "wide", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("llama", "plain", {"hidden_act": "silly"}, "hidden_act='silly'"),
    ],
)
def test_refused_native_configs(family, name, changes, reason):
    if family == "mistral":
        changes = {**changes, "num_hidden_layers": 4}
    with pytest.raises(ValueError, match=reason):
        config_from_native(native_config(family, name, **changes))


def test_layer_types_without_a_rope_of_their_own_are_named():
    """An error of the config, never a KeyError: whoever asks which families could hold a config goes on to the next."""
    from hf_variants.convert.config_conversion import can_express

    known = config_from_native(CONFIG_MAPPING["mellum"]())
    own = ("rope_parameters", "layer_types", "sliding_window", "mlp_layer_types", "no_rope_layers", "num_hidden_layers")
    keys = {name: getattr(known, name) for name in known.own_fields() if name not in own}
    assert not can_express("mellum", VariantsConfig(**{**keys, "num_hidden_layers": 2, "attention_chunk_size": 64}))
    native = CONFIG_MAPPING["mellum"](num_hidden_layers=2)
    native.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(ValueError, match=r"rope_parameters has no entry for \['chunked_attention'\] of layer_types"):
        find_family("mellum").read(native)
