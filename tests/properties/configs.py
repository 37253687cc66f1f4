"""A strategy over the whole space of configs: each choice is drawn, and what the rules refuse is drawn again.

Only what a rule ties together is drawn together (a window with its layers, the width of a factor list with the head), so that
most draws are valid; nothing else is held back.
"""

from hypothesis import assume
from hypothesis import strategies as st

from hf_variants import VariantsConfig
from hf_variants.modeling.vocabulary import CHOICES

LAYERS, VOCABULARY, ORIGINAL = 2, 37, 8
MLA_WIDTHS = {"kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8, "v_head_dim": 5}
HEAD_DIM = 12


def words(field, without=()):
    return st.sampled_from([word for word in CHOICES[field] if word not in without])


def maybe(strategy):
    return st.none() | strategy


switch = st.booleans()


@st.composite
def attention(draw):
    heads = draw(st.sampled_from([1, 3, 4]))
    keys = {"attention_type": draw(words("attention_type")), "num_attention_heads": heads, "head_dim": HEAD_DIM}
    if keys["attention_type"] == "mla":
        keys |= {**MLA_WIDTHS, "q_lora_rank": draw(maybe(st.just(14)))}
    if keys["attention_type"] == "gqa":
        keys["num_key_value_heads"] = draw(st.sampled_from([n for n in (1, 2, 3, 4) if heads % n == 0]))
    keys["layer_types"] = [draw(words("layer_types")) for _ in range(LAYERS)]
    if "sliding_attention" in keys["layer_types"]:
        keys["sliding_window"] = draw(st.sampled_from([1, 2, 4, 30]))
    if "chunked_attention" in keys["layer_types"]:
        keys["attention_chunk_size"] = draw(st.sampled_from([2, 5, 30]))
    scale = draw(st.sampled_from([{}, {"query_pre_attn_scalar": 20}, {"attention_multiplier": 0.2}]))
    if draw(switch):
        keys |= {"attn_temperature_tuning": True, "attn_temperature_layers": draw(words("attn_temperature_layers"))}
        keys |= {"floor_scale": 3, "attn_temperature_offset": draw(st.sampled_from([0, 1]))}
    qk_norm = draw(words("qk_norm"))
    return {
        **keys,
        **scale,
        "attention_bias": draw(switch),
        "attention_out_bias": draw(maybe(switch)),
        "attn_logit_softcapping": draw(maybe(st.just(3.0))),
        "attention_sinks": draw(switch),
        "qk_norm": qk_norm,
        "qk_norm_layers": "all" if qk_norm == "none" else draw(words("qk_norm_layers")),
        "attn_output_gate": draw(words("attn_output_gate")),
        "qk_norm_after_rope": draw(switch),
        "clip_qkv": draw(maybe(st.just(0.5))),
        "scale_attn_by_inverse_layer_idx": draw(switch),
    }


@st.composite
def rope(draw, width):
    kind = draw(words("rope_type"))
    rope = {"rope_type": kind, "rope_theta": draw(st.sampled_from([50.0, 10000.0]))}
    if kind != "default":
        rope["factor"] = draw(st.sampled_from([1.0, 4.0]))
    if kind in ("dynamic", "yarn", "llama3", "longrope"):
        rope["original_max_position_embeddings"] = ORIGINAL
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "longrope" and draw(switch):
        rope |= {"short_mscale": 1.1, "long_mscale": 1.3}
    if kind == "longrope":
        pairs = range(width // 2)
        rope |= {"short_factor": [1.0 + 0.1 * i for i in pairs], "long_factor": [1.0 + i for i in pairs]}
    if kind == "yarn":
        rope |= draw(
            st.sampled_from([{}, {"attention_factor": 1.3}, {"mscale": 0.7, "mscale_all_dim": 1.0}, {"truncate": False}])
        )
    return rope


@st.composite
def positions(draw, keys):
    scheme = draw(words("position_embedding_type"))
    chosen = {"position_embedding_type": scheme}
    if scheme in ("learned", "sinusoidal", "sinusoidal_halves", "sinusoidal_concat"):
        chosen["position_embedding_offset"] = draw(st.sampled_from([0, 2]))
    if scheme.startswith("sinusoidal"):
        chosen["sinusoid_dtype"] = draw(words("sinusoid_dtype"))
    if scheme == "alibi":
        chosen["alibi_scaled_bf16"] = draw(switch)
    if scheme != "rope":
        return chosen
    # a partial rotation keeps more than one pair of dimensions, of 12 as of 8
    partial = draw(st.sampled_from([1.0, 0.5]))
    width = int((MLA_WIDTHS["qk_rope_head_dim"] if keys["attention_type"] == "mla" else HEAD_DIM) * partial)
    nested = {kind: draw(maybe(rope(width))) for kind in set(keys["layer_types"])} if draw(switch) else draw(rope(width))
    return {
        **chosen,
        "rope_parameters": nested,
        "partial_rotary_factor": partial,
        "rope_interleaved": draw(switch),
        "no_rope_layers": draw(maybe(st.just([1, 0]))),
    }


@st.composite
def feed_forward(draw):
    keys = {
        "mlp_type": draw(words("mlp_type")),
        "hidden_act": draw(st.sampled_from(["silu", "gelu", "relu2"])),
        "mlp_bias": draw(switch),
        "mlp_out_bias": draw(maybe(switch)),
        "swiglu_limit": draw(maybe(st.just(1.0))),
    }
    if keys["swiglu_limit"] is not None:
        keys |= {"mlp_type": "gated", "hidden_act": "silu", "swiglu_alpha": draw(maybe(st.just(1.5)))}
    if not draw(switch):
        return keys
    groups = draw(st.sampled_from([1, 2]))
    shared = draw(st.sampled_from([0, 1, 2]))
    balance = draw(words("router_balance"))
    layers = draw(st.sampled_from([None, ["dense", "sparse"]]))
    return {
        **keys,
        "mlp_bias": keys["mlp_bias"] and bool(shared or layers),
        "mlp_out_bias": keys["mlp_out_bias"] and bool(shared or layers),
        "num_experts": 4,
        "num_experts_per_tok": draw(st.sampled_from([1, 2])),
        "moe_intermediate_size": 12,
        "mlp_layer_types": layers,
        "num_shared_experts": shared,
        "shared_expert_gate": bool(shared) and draw(switch),
        "router_scoring": draw(words("router_scoring")),
        "norm_topk_prob": draw(maybe(switch)),
        "routed_scaling_factor": draw(st.sampled_from([1.0, 2.5])),
        "n_group": groups,
        "topk_group": draw(st.integers(1, groups)),
        "router_selection": draw(words("router_selection")),
        "expert_output_norm": draw(switch),
        "router_bias": draw(switch),
        "apply_router_weight_on_input": draw(switch),
        "expert_bias": draw(switch),
        "router_balance": balance,
        "router_aux_loss_coef": draw(st.sampled_from([None, 0.01])) if balance != "none" else None,
        "router_z_loss_coef": draw(st.sampled_from([0.0, 0.01])),
    }


@st.composite
def norms(draw):
    keys = {"norm_type": draw(words("norm_type")), "norm_affine": draw(st.sampled_from([True, True, False]))}
    if keys["norm_affine"]:
        keys |= {"norm_unit_offset": draw(switch), "norm_weight_in_fp32": draw(switch)}
        if keys["norm_type"] == "layernorm":
            keys["norm_bias"] = draw(maybe(switch))
    return {
        **keys,
        "norm_placement": draw(words("norm_placement")),
        "final_norm": draw(maybe(switch)),
        "embedding_norm": draw(switch),
        "residual_multiplier": draw(st.sampled_from([1.0, 0.5])),
    }


@st.composite
def outputs(draw):
    multiplier = draw(st.sampled_from([{}, {"embedding_multiplier": 3.3}]))
    if multiplier:
        multiplier["embedding_multiplier_scope"] = draw(words("embedding_multiplier_scope"))
    return {
        **multiplier,
        "tie_word_embeddings": draw(switch),
        "lm_head_bias": draw(switch),
        "final_logit_softcapping": draw(maybe(st.just(5.0))),
        "logits_scaling": draw(st.sampled_from([1.0, 2.0])),
    }


@st.composite
def variant_keys(draw):
    """Keywords of a config that no rule refuses."""
    keys = {
        **{"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": LAYERS},
        **{"max_position_embeddings": 32, "pad_token_id": 0},
        **draw(attention()),
        **draw(feed_forward()),
        **draw(norms()),
        **draw(outputs()),
    }
    keys |= draw(positions(keys))
    try:
        VariantsConfig(**keys)
    except ValueError:
        assume(False)
    return keys
