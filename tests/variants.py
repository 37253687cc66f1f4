"""Tiny models of every toggle, for tests of any room.

    from tests.variants import TOGGLES, tiny, build, randomise

`TOGGLES` maps a name to `VariantsConfig` keywords on top of `BASE`; its groups (`ATTENTION`, `POSITIONS`, ...) are dicts too.
`ENCODERS` holds those that need a bidirectional stack.
`tiny(name, **overrides)` gives the config, `build(config)` a randomised fp32 model in eval mode.
"""

import torch

from hf_variants import (
    VariantsConfig,
    VariantsForCausalLM,
    VariantsForMaskedLM,
    VariantsForSeq2SeqLM,
    VariantsSeq2SeqConfig,
)

# head_dim differs from hidden_size / heads, kv heads from heads, and no two sizes agree, so that a swapped axis shows.
BASE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
MLA = {
    "attention_type": "mla",
    "num_key_value_heads": None,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8,
    "v_head_dim": 5,
}
# MLA's rotary part is 8 wide (4 frequencies) and a GQA head 12 wide (6 frequencies).
LONG_4 = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}
LONG_6 = {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.0, 1.8, 2.6, 3.4, 4.2, 5.0]}
ORIGINAL = 16
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "ntk": {"rope_type": "ntk", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "longrope": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
}
FOLLOWS_LENGTH = ("dynamic", "longrope")


def scaling(kind, width=12, **extra):
    """`rope_parameters` of one scaling for a rotary width of 12 (GQA) or 8 (MLA)."""
    lists = {8: LONG_4, 12: LONG_6}[width] if kind == "longrope" else {}
    return {"rope_theta": 100.0, **SCALINGS[kind], **lists, **extra}


SLIDING = {"sliding_window": 4}
ALTERNATING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
CHUNKED = {"attention_chunk_size": 5}
CHUNKED_ALTERNATING = {"attention_chunk_size": 5, "layer_types": ["chunked_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
TEMPERATURE = {"attn_temperature_tuning": True, "floor_scale": 3, "attn_scale": 0.7}
# few enough buckets that rows of the tests reach those that distances share
RELATIVE = {
    "position_embedding_type": "relative",
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9,
}
ALL_TERMS = {"attention_sinks": True, "attn_logit_softcapping": 2.0}

ATTENTION = {
    "gqa": {},
    "mha": {"attention_type": "mha", "num_key_value_heads": None},
    "mqa": {"attention_type": "mqa", "num_key_value_heads": None},
    "mla": MLA,
    "mla_q_lora": {**MLA, "q_lora_rank": 14},
    "mla_qk_head": {**MLA, "qk_norm": "head"},
    "mla_qk_l2": {**MLA, "q_lora_rank": 14, "qk_norm": "l2"},
    "mla_sinks": {**MLA, "attention_sinks": True},
    "mla_softcap": {**MLA, "attn_logit_softcapping": 2.0},
    "mla_sliding": {**MLA, **SLIDING},
    "mla_chunked": {**MLA, **CHUNKED},
    "mla_alternating": {**MLA, **ALTERNATING, **ALL_TERMS, "qk_norm": "head"},
    "mla_bias": {**MLA, "q_lora_rank": 14, "attention_bias": True},
    "qk_head": {"qk_norm": "head"},
    "qk_per_head": {"qk_norm": "per_head"},
    "qk_full": {"qk_norm": "full"},
    "clip": {"clip_qkv": 0.5},
    "clip_full": {"clip_qkv": 0.5, "qk_norm": "full"},
    "qk_l2": {"qk_norm": "l2"},
    "qk_head_after": {"qk_norm": "head", "qk_norm_after_rope": True},
    "qk_full_after": {"qk_norm": "full", "qk_norm_after_rope": True},
    "qk_l2_after": {"qk_norm": "l2", "qk_norm_after_rope": True},
    "sinks": {"attention_sinks": True},
    "sinks_fp32": {"attention_sinks": True, "sinks_in_fp32": True},
    "softcap": {"attn_logit_softcapping": 2.0},
    "sliding": SLIDING,
    "chunked": CHUNKED,
    "alternating": ALTERNATING,
    "chunked_alternating": CHUNKED_ALTERNATING,
    "chunked_nope": {**CHUNKED_ALTERNATING, "no_rope_layers": [1, 0], "qk_norm": "l2"},
    "sinks_softcap_sliding": {**ALTERNATING, **ALL_TERMS},
    "sinks_softcap_chunked": {**CHUNKED, **ALL_TERMS},
    "attention_bias": {"attention_bias": True},
    "qkv_bias_only": {"attention_bias": True, "attention_out_bias": False},
    "query_scalar": {"query_pre_attn_scalar": 20},
    "attention_multiplier": {"attention_multiplier": 0.11},
    "inverse_layer_scale": {"scale_attn_by_inverse_layer_idx": True},
    "gate_channel": {"attn_output_gate": "channel"},
    "gate_head": {"attn_output_gate": "head"},
    "mla_gate": {**MLA, "attn_output_gate": "channel"},
    "mla_gate_head": {**MLA, "attn_output_gate": "head", "attention_sinks": True},
    "qk_l2_rope_layers": {"qk_norm": "l2", "qk_norm_after_rope": True, "qk_norm_layers": "rope", "no_rope_layers": [1, 0]},
    "mla_qk_rope_layers": {**MLA, "qk_norm": "head", "qk_norm_layers": "rope", "no_rope_layers": [0, 1]},
    "temperature": TEMPERATURE,
    "temperature_chunked": {
        **{**TEMPERATURE, **CHUNKED_ALTERNATING, "no_rope_layers": [1, 0], "attn_temperature_layers": "nope"},
        **{"attn_temperature_offset": 1, "qk_norm": "l2", "qk_norm_layers": "rope", "qk_norm_after_rope": True},
    },
    "mla_temperature": {**MLA, **TEMPERATURE, "q_lora_rank": 14},
}

POSITIONS = {
    "interleaved": {"rope_interleaved": True},
    "partial": {"partial_rotary_factor": 0.5},
    "partial_interleaved": {"partial_rotary_factor": 0.5, "rope_interleaved": True},
    "alibi": {"position_embedding_type": "alibi"},
    "alibi_6_heads": {"position_embedding_type": "alibi", "num_attention_heads": 6, "num_key_value_heads": 3},
    "alibi_scaled": {"position_embedding_type": "alibi", "alibi_scaled_bf16": True},
    "alibi_scaled_terms": {
        **{"position_embedding_type": "alibi", "alibi_scaled_bf16": True, "num_attention_heads": 6},
        **{"num_key_value_heads": 3, **ALTERNATING, **ALL_TERMS},
    },
    "mla_alibi_scaled": {**MLA, "position_embedding_type": "alibi", "alibi_scaled_bf16": True},
    "alibi_terms": {"position_embedding_type": "alibi", **ALTERNATING, **ALL_TERMS},
    "alibi_chunked": {"position_embedding_type": "alibi", **CHUNKED},
    "mla_alibi": {**MLA, "position_embedding_type": "alibi"},
    "relative": RELATIVE,
    "relative_terms": {**RELATIVE, **ALTERNATING, **ALL_TERMS},
    "relative_chunked": {**RELATIVE, **CHUNKED},
    "relative_per_layer": {**RELATIVE, **ALTERNATING, "relative_attention_per_layer": True},
    "learned_relative": {**RELATIVE, "position_embedding_type": "learned_relative", "position_embedding_offset": 2},
    "mla_relative": {**MLA, **RELATIVE, "attn_logit_softcapping": 2.0},
    "learned": {"position_embedding_type": "learned"},
    "learned_offset": {"position_embedding_type": "learned", "position_embedding_offset": 2},
    "learned_sliding": {"position_embedding_type": "learned", **ALTERNATING},
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
    "sinusoidal_halves": {"position_embedding_type": "sinusoidal_halves"},
    "sinusoidal_concat": {"position_embedding_type": "sinusoidal_concat"},
    "sinusoidal_float64": {"position_embedding_type": "sinusoidal_concat", "sinusoid_dtype": "float64"},
    "sinusoidal_offset": {"position_embedding_type": "sinusoidal", "position_embedding_offset": 2},
    "no_positions": {"position_embedding_type": "none"},
    "nope_layers": {"no_rope_layers": [1, 0]},
    "mla_learned": {**MLA, "position_embedding_type": "learned"},
    "mla_no_positions": {**MLA, "position_embedding_type": "none"},
    "mla_interleaved": {**MLA, "rope_interleaved": True},
    "nested_theta": {
        **ALTERNATING,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
        },
    },
    "nested_nope": {**ALTERNATING, "rope_parameters": {"sliding_attention": scaling("yarn"), "full_attention": None}},
    "nested_chunked": {
        **CHUNKED_ALTERNATING,
        "rope_parameters": {"chunked_attention": {"rope_type": "default"}, "full_attention": scaling("llama3")},
    },
    **{kind: {"rope_parameters": scaling(kind)} for kind in SCALINGS},
    "longrope_mscales": {"rope_parameters": scaling("longrope", short_mscale=1.1, long_mscale=1.4)},
    **{f"mla_{kind}": {**MLA, "rope_parameters": scaling(kind, 8)} for kind in SCALINGS},
    **{
        f"nested_{kind}": {
            **ALTERNATING,
            "rope_parameters": {"sliding_attention": {"rope_type": "default"}, "full_attention": scaling(kind)},
        }
        for kind in SCALINGS
    },
    "mla_nested_longrope": {
        **MLA,
        **ALTERNATING,
        "rope_parameters": {"sliding_attention": scaling("dynamic", 8), "full_attention": scaling("longrope", 8)},
    },
}

TOPOLOGY = {
    "pre_normed_residual": {"norm_placement": "pre_normed_residual"},
    "post": {"norm_placement": "post"},
    "post_ln": {"norm_placement": "post_ln"},
    "sandwich": {"norm_placement": "sandwich"},
    "parallel": {"norm_placement": "parallel"},
    "parallel_two_norms": {"norm_placement": "parallel_two_norms"},
    "residual_multiplier": {"residual_multiplier": 0.5},
}

NORM = {
    "rmsnorm_unit_offset": {"norm_unit_offset": True},
    "rmsnorm_fp32_weight": {"norm_weight_in_fp32": True},
    "rmsnorm_non_parametric": {"norm_affine": False},
    "layernorm": {"norm_type": "layernorm"},
    "layernorm_no_bias": {"norm_type": "layernorm", "norm_bias": False},
    "layernorm_non_parametric": {"norm_type": "layernorm", "norm_affine": False},
    "layernorm_unit_offset": {"norm_type": "layernorm", "norm_unit_offset": True},
    "layernorm_fp32_weight": {"norm_type": "layernorm", "norm_weight_in_fp32": True},
    "no_final_norm": {"final_norm": False},
    "embedding_norm": {"embedding_norm": True},
    "no_first_norm": {"first_attention_norm": False},
}

FEED_FORWARD = {
    "plain": {"mlp_type": "plain", "hidden_act": "gelu"},
    "plain_bias": {"mlp_type": "plain", "hidden_act": "relu2", "mlp_bias": True},
    "gated_bias": {"mlp_bias": True, "hidden_act": "gelu_pytorch_tanh"},
    "last_bias_only": {"mlp_out_bias": True},
    "swiglu_clamped": {"swiglu_limit": 1.0},
}

MOE = {
    "moe": EXPERTS,
    "moe_no_topk_norm": {**EXPERTS, "norm_topk_prob": False, "routed_scaling_factor": 1.5},
    "moe_aux_loss": {**EXPERTS, "router_balance": "aux_loss", "router_z_loss_coef": 0.001},
    "moe_bias_balance": {**EXPERTS, "router_balance": "bias", "router_scoring": "sigmoid"},
    "moe_groups": {
        **EXPERTS,
        "num_experts": 8,
        "router_scoring": "sigmoid",
        "router_balance": "bias",
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "routed_scaling_factor": 2.5,
        "num_shared_experts": 1,
    },
    "moe_softmax_groups": {**EXPERTS, "num_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3},
    "moe_shared": {**EXPERTS, "num_shared_experts": 2},
    "moe_shared_gate": {**EXPERTS, "num_shared_experts": 1, "shared_expert_gate": True},
    "moe_first_dense": {**EXPERTS, "mlp_layer_types": ["dense", "sparse"]},
    "moe_fp32_router": {**EXPERTS, "router_weight_in_fp32": True},
    "moe_biases": {**EXPERTS, "router_bias": True, "expert_bias": True, "swiglu_limit": 1.0},
    "moe_plain": {**EXPERTS, "mlp_type": "plain", "hidden_act": "gelu"},
    "moe_plain_bias": {**EXPERTS, "mlp_type": "plain", "hidden_act": "gelu", "expert_bias": True},
    "moe_sparsemixer": {**EXPERTS, "router_scoring": "sparsemixer", "sparsemixer_jitter_eps": 0.4},
    "moe_weighted_inputs": {
        **{**EXPERTS, "apply_router_weight_on_input": True, "router_scoring": "sigmoid", "norm_topk_prob": False},
        "num_shared_experts": 1,
    },
    "moe_by_logits": {
        **{**EXPERTS, "router_scoring": "sigmoid", "router_balance": "bias", "router_selection": "logits"},
        **{"num_shared_experts": 1, "expert_output_norm": True, "mlp_layer_types": ["dense", "sparse"]},
    },
    "moe_weighted_inputs_bias": {**EXPERTS, "apply_router_weight_on_input": True, "expert_bias": True},
    "moe_mla": {**EXPERTS, **MLA, "num_shared_experts": 1},
}

OUTPUT = {
    "tied": {"tie_word_embeddings": True},
    "lm_head_bias": {"lm_head_bias": True},
    "final_softcap": {"final_logit_softcapping": 3.0},
    "logits_scaling": {"logits_scaling": 4.0},
    "embedding_multiplier": {"embedding_multiplier": 5.7},
    "embedding_multiplier_ids": {"embedding_multiplier": 5.7, "embedding_multiplier_scope": "input_ids"},
    "narrow_embedding": {"embedding_size": 20, "embedding_norm": True},
    "narrow_learned": {"embedding_size": 20, "position_embedding_type": "learned"},
    "narrow_sinusoidal": {"embedding_size": 20, "position_embedding_type": "sinusoidal"},
    "narrow_tokens": {
        **{"embedding_size": 20, "embedding_projection": "tokens", "position_embedding_type": "learned"},
        **{"embedding_norm": True, "tie_word_embeddings": True},
    },
    "narrow_tied": {"embedding_size": 20, "lm_head_act": "gelu", "tie_word_embeddings": True},
    "head_transform": {"lm_head_act": "gelu", "lm_head_transform_bias": False},
}

# what only a bidirectional stack has
BIDIRECTIONAL = {"is_causal": False, "norm_type": "layernorm"}
BERT = {
    **{"position_embedding_type": "learned", "norm_placement": "post_ln", "embedding_norm": True, "type_vocab_size": 2},
    **{"mlp_type": "plain", "hidden_act": "gelu", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
    **{"lm_head_act": "gelu", "lm_head_bias": True, "tie_word_embeddings": True, "pooler": True, "task_head": "pooler"},
}
OF_IDS = {"position_embedding_type": "learned", "position_source": "input_ids", "position_embedding_offset": 1}
ENCODERS = {
    "token_types": {**BIDIRECTIONAL, "type_vocab_size": 3},
    "positions_of_ids": {**BIDIRECTIONAL, **OF_IDS},
    "bert": {**BIDIRECTIONAL, **BERT},
    "roberta": {
        **BIDIRECTIONAL,
        **BERT,
        **OF_IDS,
        "type_vocab_size": 1,
        "task_head": "dropped_dense",
        "classifier_act": "tanh",
    },
    "electra": {
        **BIDIRECTIONAL,
        **BERT,
        "embedding_size": 20,
        "task_head": "dense",
        "classifier_act": "gelu",
        "pooler": False,
    },
    "modernbert": {
        **{**BIDIRECTIONAL, **ALTERNATING, "norm_bias": False, "first_attention_norm": False, "embedding_norm": True},
        **{"lm_head_act": "gelu", "lm_head_transform_bias": False, "task_head": "transform", "classifier_pooling": "mean"},
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
        },
    },
    "biased_classifier": {**BIDIRECTIONAL, "task_head": "biased_linear"},
    "eurobert": {**BIDIRECTIONAL, "task_head": "dense", "classifier_act": "gelu", "classifier_pooling": "late"},
}

# attention to the states of another stack, 20 wide
ACROSS = {"add_cross_attention": True, "cross_attention_hidden_size": 20}

TOGGLES = {**ATTENTION, **POSITIONS, **TOPOLOGY, **NORM, **FEED_FORWARD, **MOE, **OUTPUT}


def tiny(name, **overrides):
    """The config of `TOGGLES[name]` or `ENCODERS[name]`, with `overrides`."""
    return VariantsConfig(**{**BASE, **{**TOGGLES, **ENCODERS}[name], **overrides})


def tiny_pair(encoder="gqa", decoder="gqa", wider=None, **joined):
    """An encoder-decoder of two toggles, the encoder of another width and depth; `joined` are keys of the whole.

    wider: keys for both stacks.
    """
    smaller = {"hidden_size": 20, "num_hidden_layers": 1}
    stacks = {}
    for name, toggle, size in (("encoder", encoder, smaller), ("decoder", decoder, {"eos_token_id": 1})):
        keys = {**BASE, **{**TOGGLES, **ENCODERS}[toggle], **size, **(wider or {})}
        # lists per layer are cut to the depth
        depth = keys["num_hidden_layers"]
        per_layer = ("layer_types", "mlp_layer_types", "no_rope_layers")
        stacks[name] = {key: value[:depth] if key in per_layer and value else value for key, value in keys.items()}
    return VariantsSeq2SeqConfig(**{**stacks, "decoder_start_token_id": 0, **joined})


def build(config, model_class=None, seed=0):
    """A randomised fp32 model of `config` in eval mode: a masked language model where the config is not causal."""
    if model_class is None and config.is_encoder_decoder:
        model_class = VariantsForSeq2SeqLM
    if model_class is None:
        model_class = VariantsForCausalLM if config.is_causal else VariantsForMaskedLM
    return randomise(model_class(config), seed).eval()


@torch.no_grad()
def randomise(model, seed=0):
    """Draw every parameter and balance bias, so that none is at a value (0, 1, equal) that would hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    unit = not getattr(model.config, "norm_unit_offset", False)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        if "norm" in name and name.endswith("weight") and parameter.dim() == 1:
            drawn = drawn * 0.3 + (1.0 if unit else 0.0)
        elif name.endswith("sinks"):
            drawn = drawn + 1.0
        elif "embed" in name:
            drawn = drawn * 0.7
        else:
            drawn = drawn * (0.3 if parameter.dim() == 1 else 0.25)
        parameter.copy_(drawn)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
    return model


def draw_ids(*shape, seed=1, vocab=61):
    """Random token ids, never the pad id 0."""
    return torch.randint(1, vocab, shape, generator=torch.Generator().manual_seed(seed))


def far(a, b):
    """Largest absolute difference, as a float; infinite where either holds a NaN."""
    difference = (a.detach().float() - b.detach().float()).abs().max().item()
    return float("inf") if difference != difference else difference
