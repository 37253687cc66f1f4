"""One config per toggle, on a tiny base: what the page of pairs is generated from, and what its test runs."""

from itertools import combinations

from hf_variants import VariantsConfig

BASE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}

TOGGLES = {
    "gqa": {"attention_type": "gqa", "num_key_value_heads": 2},
    "mqa": {"attention_type": "mqa"},
    "mla": {"attention_type": "mla"},
    "mla with q_lora": {"attention_type": "mla", "q_lora_rank": 16},
    "sliding": {"sliding_window": 4},
    "chunked": {"attention_chunk_size": 4},
    "alternating": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "sinks": {"attention_sinks": True},
    "sinks in fp32": {"attention_sinks": True, "sinks_in_fp32": True},
    "soft-cap": {"attn_logit_softcapping": 5.0},
    "qk_norm head": {"qk_norm": "head"},
    "qk_norm per head": {"qk_norm": "per_head"},
    "clipped qkv": {"clip_qkv": 0.5},
    "qk_norm full": {"qk_norm": "full"},
    "qk_norm l2": {"qk_norm": "l2"},
    "qk_norm after rope": {"qk_norm": "head", "qk_norm_after_rope": True},
    "qk_norm on rotated layers": {"qk_norm": "l2", "qk_norm_layers": "rope", "no_rope_layers": [1, 0]},
    "gate per channel": {"attn_output_gate": "channel"},
    "gate per head": {"attn_output_gate": "head"},
    "query temperature": {"attn_temperature_tuning": True, "floor_scale": 4},
    "attention_bias": {"attention_bias": True},
    "bidirectional": {"is_causal": False},
    "cross-attention": {"add_cross_attention": True},
    "rope interleaved": {"rope_interleaved": True},
    "rope partial": {"partial_rotary_factor": 0.5},
    "rope on some layers": {"no_rope_layers": [1, 0]},
    "rope linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    "rope ntk": {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}},
    "rope dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}},
    "rope yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "rope llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
    "alibi": {"position_embedding_type": "alibi"},
    "alibi scaled": {"position_embedding_type": "alibi", "alibi_scaled_bf16": True},
    "relative bias": {
        "position_embedding_type": "relative",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 9,
    },
    "relative bias per layer": {
        "position_embedding_type": "relative",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 9,
        "relative_attention_per_layer": True,
    },
    "learned and relative": {
        "position_embedding_type": "learned_relative",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 9,
    },
    "learned": {"position_embedding_type": "learned"},
    "sinusoidal halves": {"position_embedding_type": "sinusoidal_halves"},
    "sinusoidal concat": {"position_embedding_type": "sinusoidal_concat"},
    "sinusoidal float64": {"position_embedding_type": "sinusoidal_concat", "sinusoid_dtype": "float64"},
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
    "no positions": {"position_embedding_type": "none"},
    "plain mlp": {"mlp_type": "plain", "hidden_act": "gelu"},
    "mlp_bias": {"mlp_bias": True},
    "last mlp_bias": {"mlp_out_bias": True},
    "clamped swiglu": {"swiglu_limit": 7.0},
    "experts": {"num_experts": 4},
    "experts, fp32 router": {"num_experts": 4, "router_weight_in_fp32": True},
    "experts, aux loss": {"num_experts": 4, "router_balance": "aux_loss"},
    "experts, sigmoid groups, bias": {
        "num_experts": 4,
        "router_scoring": "sigmoid",
        "n_group": 2,
        "topk_group": 1,
        "router_balance": "bias",
    },
    "experts, shared": {"num_experts": 4, "num_shared_experts": 1, "shared_expert_gate": True},
    "experts, biases": {"num_experts": 4, "expert_bias": True, "router_bias": True},
    "experts, sparsemixer": {"num_experts": 4, "router_scoring": "sparsemixer"},
    "experts, chosen by logits": {"num_experts": 4, "router_balance": "bias", "router_selection": "logits"},
    "experts, output norm": {"num_experts": 4, "expert_output_norm": True},
    "experts, weighted inputs": {"num_experts": 4, "apply_router_weight_on_input": True},
    "layernorm": {"norm_type": "layernorm"},
    "unit-offset norm": {"norm_unit_offset": True},
    "non-parametric norm": {"norm_affine": False},
    "norm pre_normed_residual": {"norm_placement": "pre_normed_residual"},
    "norm post": {"norm_placement": "post"},
    "norm post_ln": {"norm_placement": "post_ln"},
    "norm sandwich": {"norm_placement": "sandwich"},
    "norm parallel": {"norm_placement": "parallel"},
    "norm parallel_two_norms": {"norm_placement": "parallel_two_norms"},
    "embedding norm and multiplier": {"embedding_norm": True, "embedding_multiplier": 4.0},
    "residual multiplier": {"residual_multiplier": 0.5},
    "final soft-cap": {"final_logit_softcapping": 10.0},
    "tied head": {"tie_word_embeddings": True},
    "head transform": {"lm_head_act": "gelu"},
    "narrow embedding": {"embedding_size": 16},
    "narrow tokens": {"embedding_size": 16, "embedding_projection": "tokens"},
    "no first norm": {"first_attention_norm": False},
    "token types": {"is_causal": False, "type_vocab_size": 2},
    "positions of ids": {
        "is_causal": False,
        "position_embedding_type": "learned",
        "position_source": "input_ids",
        "position_embedding_offset": 1,
        "pad_token_id": 0,
    },
    "pooler": {"is_causal": False, "pooler": True},
}


def pairs():
    """Every two toggles that set no key differently, as (first name, second name, config keys)."""
    for first, second in combinations(TOGGLES, 2):
        one, two = TOGGLES[first], TOGGLES[second]
        if all(one[key] == two[key] for key in one.keys() & two.keys()):
            yield first, second, {**BASE, **one, **two}


def refusal(keys):
    """The reason for which a config of these keys is refused, or None."""
    try:
        VariantsConfig(**keys)
    except ValueError as error:
        return str(error)
    return None
