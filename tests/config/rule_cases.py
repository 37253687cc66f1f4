"""One config per rule of `config_rules.RULES` that breaks that rule alone; the groups of experts are known failure B57."""

MOE = {"num_experts": 4}
MLA = {"attention_type": "mla"}
NOPE = {"position_embedding_type": "none"}
NTK = {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}

BASE = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}

POSITIVE = {
    "vocab_size": 0,
    "hidden_size": 0,
    "intermediate_size": -8,
    "num_hidden_layers": 0,
    "num_attention_heads": 0,
    "num_key_value_heads": -4,
    "head_dim": 0,
    "norm_eps": 0.0,
    "max_position_embeddings": 0,
    "moe_intermediate_size": 0,
    "query_pre_attn_scalar": -1,
    "q_lora_rank": 0,
    "kv_lora_rank": 0,
    "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0,
    "v_head_dim": -8,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "logits_scaling": 0.0,
    "latent_norm_eps": -1e-6,
    "sliding_window": 0,
    "attention_chunk_size": 0,
    "swiglu_limit": 0.0,
    "attention_multiplier": 0.0,
    "clip_qkv": 0.0,
}
# what a field needs beside it so that nothing else is wrong
COMPANIONS = {
    "latent_norm_eps": MLA,
    "hidden_size": {"intermediate_size": 8},
    "num_hidden_layers": NOPE,
    "num_attention_heads": {"num_key_value_heads": 1},
    "head_dim": NOPE,
    "moe_intermediate_size": MOE,
    "qk_rope_head_dim": {**MLA, **NOPE},
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), MLA),
}
NEEDS_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
NEEDS_EXPERTS = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "num_shared_experts": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.0,
    "n_group": 2,
    "topk_group": 2,
    "router_bias": True,
    "expert_bias": True,
    "router_balance": "bias",
    "router_z_loss_coef": 0.1,
}

BROKEN = {
    **{f"{name} is positive": {**COMPANIONS.get(name, {}), name: value} for name, value in POSITIVE.items()},
    **{f"{name} needs attention_type=mla": {name: 8} for name in NEEDS_MLA},
    **{f"{name} needs experts": {name: value} for name, value in NEEDS_EXPERTS.items()},
    "heads are whole groups": {"num_key_value_heads": 3},
    "dropouts are probabilities": {"attention_dropout": 1.0},
    "special tokens lie in the vocabulary": {"eos_token_id": [1, 32]},
    "sliding layers need a window": {"layer_types": ["sliding_attention", "full_attention"]},
    "a window needs sliding layers": {"layer_types": ["full_attention"] * 2, "sliding_window": 4},
    "chunked layers need a chunk": {"layer_types": ["chunked_attention", "full_attention"]},
    "a chunk needs chunked layers": {"layer_types": ["full_attention"] * 2, "attention_chunk_size": 4},
    "no_rope_layers is a switch per layer": {"no_rope_layers": [1, 2]},
    "no_rope_layers needs rope": {"no_rope_layers": [0, 1], "position_embedding_type": "alibi"},
    "rope turns at least one layer": {"no_rope_layers": [0, 0]},
    "mla shares its latent among all heads": {**MLA, "num_key_value_heads": 2},
    "clipping needs projected keys": {**MLA, "clip_qkv": 8.0},
    "norms per head need weights": {"qk_norm": "per_head", "norm_affine": False},
    "full qk-norm needs keys per channel": {**MLA, "qk_norm": "full"},
    "norm after rope needs both": {"qk_norm_after_rope": True},
    "mla normalises before rope": {**MLA, "qk_norm": "head", "qk_norm_after_rope": True},
    "one attention scale": {"attention_multiplier": 0.5, "query_pre_attn_scalar": 8},
    "interleaving needs rope": {"rope_interleaved": True, "position_embedding_type": "learned"},
    "rotary dimensions are pairs": {"partial_rotary_factor": 0.4},
    "the offset belongs to tables": {"position_embedding_offset": 2},
    "halved sinusoids have frequencies between two ends": {
        **{"position_embedding_type": "sinusoidal_halves", "hidden_size": 2},
    },
    "sinusoids are pairs": {"position_embedding_type": "sinusoidal", "hidden_size": 33},
    "dynamic needs room": {"partial_rotary_factor": 0.25, **NTK},
    "clamped gates are gated silu": {"swiglu_limit": 7.0, "mlp_type": "plain"},
    "alpha needs the clamped gate": {"swiglu_alpha": 1.7},
    "sparse layers need experts": {"mlp_layer_types": ["dense", "sparse"]},
    "experts need sparse layers": {**MOE, "mlp_layer_types": ["dense", "dense"]},
    "top-k lies within the experts": {**MOE, "num_experts_per_tok": 0},
    "groups divide the experts": {**MOE, "n_group": 3, "topk_group": 3},
    "kept groups exist": {**MOE, "n_group": 2, "topk_group": 3},
    "kept groups hold top-k experts": {**MOE, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 3},
    "group scores need two experts": {**MOE, "n_group": 4, "topk_group": 4, "router_scoring": "sigmoid"},
    "shared experts fit their gate": {**MOE, "shared_expert_gate": True},
    "shared width needs shared experts": {**MOE, "shared_expert_intermediate_size": 16},
    "coefficients are not negative": {**MOE, "router_balance": "bias", "router_bias_update_rate": -0.1},
    "router_bias_update_rate needs router_balance=bias": {**MOE, "router_bias_update_rate": 0.1},
    "bias balancing needs a rate": {**MOE, "router_balance": "bias", "router_bias_update_rate": 0.0},
    "routed experts count": {**MOE, "routed_scaling_factor": 0.0},
    "weights start around zero": {"initializer_range": -0.1},
    "partial_rotary_factor needs position_embedding_type=rope": {**NOPE, "partial_rotary_factor": 0.5},
    "rows of a table are counted from zero": {"position_embedding_type": "learned", "position_embedding_offset": -1},
    "latent_norm_eps needs attention_type=mla": {"latent_norm_eps": 1e-3},
    "an auxiliary coefficient needs balancing": {**MOE, "router_aux_loss_coef": 0.1},
    "an auxiliary loss needs its coefficient": {**MOE, "router_balance": "aux_loss", "router_aux_loss_coef": 0.0},
    "a frozen pad row needs a pad": {"freeze_pad_embedding": True},
    "rmsnorm has no bias": {"norm_bias": True},
    "a non-parametric norm has nothing to offset": {"norm_affine": False, "norm_unit_offset": True},
    "scalars that multiply are not zero": {"residual_multiplier": 0.0},
}

# what no keyword can break, only an attribute that is changed later: {rule: ({keywords}, {attributes})}
CHANGED = {"rope parameters need rope": ({}, {"position_embedding_type": "alibi"})}
