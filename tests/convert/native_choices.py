"""The choices of the families after the first fourteen, for `native_cases.py`."""

_SLIDE, _FULL = "sliding_attention", "full_attention"
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 5000.0}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4}
_LLAMA3["original_max_position_embeddings"] = 16
_LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 2e4}
_HALF_LINEAR = {**_LINEAR, "partial_rotary_factor": 0.5}
_TIED, _UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
_PATTERN = {"sliding_window": 5, "layer_types": [_SLIDE, _FULL, _SLIDE]}

_GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.5}

DENSE = {
    "ministral": {"pattern": {**_PATTERN, "head_dim": 12}, "tied_yarn": {**_TIED, "head_dim": 8, "rope_parameters": _YARN}},
    "ministral3": {
        "yarn": {"head_dim": 12, "rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.7}, **_TIED},
        "window_plain": {
            **{"head_dim": 8, "sliding_window": 5, "num_key_value_heads": 1},
            "rope_parameters": {
                **{"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.3},
                "original_max_position_embeddings": 3,
            },
        },
        "untempered": {"head_dim": 8, "rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.0}},
    },
    "iquestcoder": {"biased": {"head_dim": 12, "attention_bias": True, "mlp_bias": True}, "tied": _TIED},
    "internlm3": {"plain": {"head_dim": 8}, "biased": {"head_dim": 12, "attention_bias": True, "mlp_bias": True, **_TIED}},
    "gemma": {
        "wide": {"head_dim": 12, "hidden_act": "gelu"},
        "untied_biased": {**_UNTIED, "head_dim": 8, "attention_bias": True, "rope_parameters": _LLAMA3},
    },
    "vaultgemma": {
        "pattern": {**_PATTERN, "head_dim": 12, "query_pre_attn_scalar": 17},
        "hot_caps": {
            **{**_UNTIED, "head_dim": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0},
            "attention_bias": True,
        },
    },
    "granite": {"plain": _GRANITE, "tied_biased": {**_TIED, **_GRANITE, "attention_bias": True, "mlp_bias": True}},
    "granite_swa": {
        "pattern": {**_GRANITE, **_PATTERN},
        "untied_thetas": {
            **{**_UNTIED, **_PATTERN, "layer_rope_theta": [3e3, 7e4, 3e3], "attention_bias": True, "mlp_bias": True},
        },
        "some_turned": {**_PATTERN, "layer_rope_theta": [3e3, 0, 3e3], "rope_parameters": _YARN},
        "no_rope": {**_PATTERN, "layer_rope_theta": [0, 0, 0]},
    },
    "hyperclovax": {
        "sandwich": {**_GRANITE, "logits_scaling": 0.3},
        "pre": {"use_post_norm": False, "attention_bias": True, "mlp_bias": True, **_TIED},
    },
    "starcoder2": {"biased": {}, "window": {**_UNTIED, "use_bias": False, "sliding_window": 5, "rope_parameters": _LINEAR}},
    "arcee": {"plain": {}, "tied_biased": {**_TIED, "attention_bias": True, "mlp_bias": True, "rope_parameters": _YARN}},
    "jais2": {"biased": {}, "tied": {**_TIED, "attention_bias": False, "mlp_bias": False, "rope_parameters": _LLAMA3}},
    "nemotron": {
        "half_turned": {"head_dim": 12},
        "tied_biased": {**_TIED, "attention_bias": True, "mlp_bias": True, "partial_rotary_factor": 1.0},
    },
    "seed_oss": {
        "plain": {"head_dim": 12, "attention_dropout": 0.0, "residual_dropout": 0.0},
        "tied_biased": {
            **{**_TIED, "head_dim": 8, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
            **{"attention_dropout": 0.0, "residual_dropout": 0.0, "rope_parameters": _YARN},
        },
    },
    "smollm3": {
        "every_second": {"no_rope_layers": [1, 0, 1], "rope_parameters": _YARN},
        "window": {**_UNTIED, "use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [0, 1, 0]},
        "no_rope": {"no_rope_layers": [0, 0, 0], "attention_bias": True, "mlp_bias": True},
    },
    "helium": {"plain": {"head_dim": 8}, "tied_biased": {**_TIED, "head_dim": 8, "attention_bias": True, "mlp_bias": True}},
    "glm": {
        "biased": {"head_dim": 12},
        "tied": {
            **_TIED,
            "head_dim": 8,
            "attention_bias": False,
            "rope_parameters": {**_LINEAR, "partial_rotary_factor": 0.5},
        },
    },
    "glm4": {"biased": {"head_dim": 12}, "tied": {**_TIED, "head_dim": 8, "attention_bias": False}},
    "ernie4_5": {
        "tied": {"head_dim": 12},
        "untied_biased": {**_UNTIED, "head_dim": 8, "use_bias": True, "rope_parameters": _YARN},
    },
    "exaone4": {
        "pattern": _PATTERN,
        "windowless": {**_TIED, "sliding_window": None, "layer_types": [_FULL] * 3, "rope_parameters": _LLAMA3},
        "no_rope": {"sliding_window": 5, "layer_types": [_FULL] * 3, "head_dim": 12},
    },
    "cwm": {"pattern": {**_PATTERN, "head_dim": 12}, "tied_llama3": {**_TIED, "head_dim": 8, "rope_parameters": _LLAMA3}},
    "olmo3": {
        "pattern": _PATTERN,
        "tied_biased_yarn": {
            **{**_TIED, **_PATTERN, "attention_bias": True},
            "rope_parameters": {_FULL: _YARN, _SLIDE: {"rope_type": "default", "rope_theta": 3e3}},
        },
    },
    "cohere": {
        "tied": {"logit_scale": 0.7},
        "normed": {"logit_scale": 0.7, "use_qk_norm": True},
        "untied_biased": {**_UNTIED, "attention_bias": True, "logit_scale": 0.3, "rope_parameters": _YARN},
    },
    "cohere2": {
        "pattern": {**_PATTERN, "logit_scale": 0.7},
        "untied_biased": {
            **{**_UNTIED, **_PATTERN, "attention_bias": True, "head_dim": 12, "rope_parameters": _LINEAR},
            "logit_scale": 0.5,
        },
        "no_rope": {"layer_types": [_FULL] * 3, "logit_scale": 0.5},
    },
    "cohere_compass_text": {
        "two_thetas": {**_PATTERN, "rope_parameters": {_SLIDE: _LINEAR, _FULL: _YARN}, "logit_scale": 0.7},
        "pattern_untied_biased": {
            **{**_UNTIED, **_PATTERN, "attention_bias": True, "num_key_value_heads": 1},
            "rope_parameters": {_SLIDE: {**_YARN, "mrope_section": [2, 1, 1]}, _FULL: None},
        },
        "no_rope": {"rope_parameters": {_FULL: None}, "logit_scale": 0.5, "head_dim": 8},
    },
}

_FEW = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_COMMAND = {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24, "head_dim": 12}
_MIXTRAL = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24}
_ONE = {"num_hidden_layers": 1, "output_router_logits": True, "router_aux_loss_coef": 0.5}
_ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "n_shared_experts": 1}
_GROUPS = {"n_group": 4, "topk_group": 2}
_LATENT = {"q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 10}
_LATENT["num_key_value_heads"] = 6
_MSCALE = {**_YARN, "mscale": 0.707, "mscale_all_dim": 1.0, "beta_fast": 16.0, "beta_slow": 2.0}
_DENSE_FIRST = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
_ALL_DENSE = {"mlp_layer_types": ["dense"] * 3}
_ATTENDS = {"layer_types": [_FULL] * 3, "mamba_n_heads": 4, "position_embedding_type": "rope"}
_FEW_FACTORS = {"short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [2.0, 3.0, 5.0, 7.0]}
_LONG_MSCALES = {"rope_type": "longrope", **_FEW_FACTORS, "short_mscale": 1.1, "long_mscale": 1.4}
_LONG_MSCALES = {"rope_parameters": {**_LONG_MSCALES, "original_max_position_embeddings": 8, "rope_theta": 1e4}}
_LLAMA4 = {
    **{"num_local_experts": 6, "num_experts_per_tok": 1, "intermediate_size": 24, "intermediate_size_mlp": 40},
    **{"attention_chunk_size": 5, "floor_scale": 3, "attn_scale": 0.7, "no_rope_layers": [1, 0, 1]},
}
_ALPHA = {"rope_type": "dynamic", "alpha": 100.0, "factor": 1.0, "rope_theta": 1e4}

EXPERTS = {
    "qwen2_moe": {
        "plain": {**_FEW, "shared_expert_intermediate_size": 20},
        "steps_window": {
            **{**_FEW, "shared_expert_intermediate_size": 20, "decoder_sparse_step": 2, "norm_topk_prob": True, **_TIED},
            **{"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3, "qkv_bias": False},
        },
        "balanced": {**_FEW, **_ONE, "shared_expert_intermediate_size": 20},
    },
    "mellum": {
        "pattern": {**_FEW, **_PATTERN, **_DENSE_FIRST, "head_dim": 12},
        "biased_yarn": {
            **{**_TIED, **_FEW, **_PATTERN, "head_dim": 8, "attention_bias": True, "norm_topk_prob": False},
            "rope_parameters": {_FULL: _YARN, _SLIDE: {"rope_type": "default", "rope_theta": 3e3}},
        },
    },
    "flex_olmo": {
        "raw_weights": _MIXTRAL,
        "tied_balanced": {**_TIED, **_MIXTRAL, **_ONE, "norm_topk_prob": True, "attention_bias": True},
    },
    "olmoe": {
        "clipped_raw_weights": {**_MIXTRAL, "clip_qkv": 0.7},
        "tied_biased": {**_TIED, **_MIXTRAL, "norm_topk_prob": True, "attention_bias": True, "head_dim": 8},
    },
    "granitemoe": {"plain": {**_GRANITE, **_MIXTRAL}, "tied_balanced": {**_TIED, **_MIXTRAL, **_ONE, "attention_bias": True}},
    "cohere2_moe": {
        "softmax": {**_COMMAND, **_PATTERN, **_DENSE_FIRST, "logit_scale": 0.7, "rope_theta": 3e4},
        "sigmoid_rms": {
            **{**_UNTIED, **_COMMAND, "layer_types": [_FULL, _SLIDE, _FULL], "sliding_window": 5, **_DENSE_FIRST},
            **{"expert_selection_fn": "sigmoid", "rms_norm_eps": 1e-5, "attention_bias": True, "logit_scale": 0.5},
            **{"num_shared_experts": 1, "shared_expert_combination_strategy": "sum", "prefix_dense_intermediate_size": 20},
        },
        "unturned_prefix": {
            **{**_COMMAND, "layer_types": [_FULL, _SLIDE, _FULL], "sliding_window": 5, **_DENSE_FIRST, "logit_scale": 0.5},
            **{"prefix_dense_sliding_window_pattern": 2, "expert_selection_fn": "sigmoid", "norm_topk_prob": False},
        },
    },
    "flint": {
        "pattern": {**_FEW, **_PATTERN, "head_dim": 12, "mlp_only_layers": [0], "shared_expert_intermediate_size": 20},
        "tied_biased": {
            **{**_TIED, **_FEW, **_PATTERN, "head_dim": 8, "mlp_only_layers": [], "shared_expert_intermediate_size": 20},
            **{"attention_bias": True, "norm_topk_prob": False, "rope_parameters": _YARN},
        },
        "no_rope": {
            **{**_FEW, "head_dim": 8, "layer_types": [_FULL] * 3, "mlp_only_layers": [0, 1, 2]},
            "shared_expert_intermediate_size": 20,
        },
    },
    "granitemoehybrid": {
        "dense": {**_GRANITE, **_ATTENDS, "num_local_experts": 0, "shared_intermediate_size": 20, "rope_parameters": _YARN},
        "nope": {
            **_TIED,
            **_GRANITE,
            **_ATTENDS,
            "num_local_experts": 0,
            "position_embedding_type": None,
            "attention_bias": True,
        },
        "experts": {**_MIXTRAL, **_ATTENDS, "shared_intermediate_size": 20},
        "balanced": {**_MIXTRAL, **_ATTENDS, **_ONE, "layer_types": [_FULL], "shared_intermediate_size": 20},
    },
    "phimoe": {
        "longrope_biased": {
            **{**_MIXTRAL, **_LONG_MSCALES, "attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.3},
        },
        "longrope_window": {**_TIED, **_MIXTRAL, **_LONG_MSCALES, "sliding_window": 5, "router_jitter_noise": 0.05},
        "balanced": {
            **_MIXTRAL,
            **_ONE,
            "router_jitter_noise": 0.5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "llama4_text": {
        "chunks": {**_LLAMA4, "moe_layers": [1], "head_dim": 12},
        "tied_biased": {
            **{**_TIED, **_LLAMA4, "num_experts_per_tok": 2, "attention_bias": True, "use_qk_norm": False, "head_dim": 8},
            **{"rope_parameters": _LLAMA3, "num_key_value_heads": 1, "no_rope_layers": [1, 0, 0]},
        },
        "even": {**_LLAMA4, "attn_temperature_tuning": False, "interleave_moe_layer_step": 2, "head_dim": 8},
        "turned_chunks_elsewhere": {
            **{**_LLAMA4, "head_dim": 8, "layer_types": [_FULL, "chunked_attention", _FULL]},
            **{"no_rope_layers": [0, 1, 1], "rope_parameters": _YARN, "num_experts_per_tok": 3},
        },
        "no_rope": {**_LLAMA4, "head_dim": 8, "no_rope_layers": [0, 0, 0], "moe_layers": []},
    },
    "afmoe": {
        "pattern": {**_FEW, **_PATTERN, "head_dim": 12, "mup_enabled": True, "route_scale": 1.7},
        "tied_biased": {
            **{**_TIED, **_FEW, **_PATTERN, "head_dim": 8, "num_dense_layers": 2, "num_shared_experts": 1},
            **{"attention_bias": True, "rope_parameters": _YARN, "num_key_value_heads": 1},
        },
        "no_rope": {**_FEW, "head_dim": 8, "layer_types": [_FULL] * 3, "num_dense_layers": 0},
        "all_dense": {**_FEW, **_PATTERN, "head_dim": 8, "num_dense_layers": 3},
    },
    "granitemoe_swa": {
        "shared": {**_GRANITE, **_MIXTRAL, **_PATTERN, "shared_intermediate_size": 20},
        "unshared": {**_TIED, **_MIXTRAL, **_PATTERN, "layer_rope_theta": [3e3, 7e4, 3e3], "attention_bias": True},
    },
    "granitemoeshared": {
        "shared": {**_GRANITE, **_MIXTRAL, "shared_intermediate_size": 20},
        "unshared": {**_TIED, **_MIXTRAL, "attention_bias": True, "rope_parameters": _YARN},
    },
    "deepseek_v2": {
        "greedy": {**_LATENT, **_ROUTED, "first_k_dense_replace": 1},
        "groups_biased": {
            **{**_LATENT, **_ROUTED, **_GROUPS, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7},
            **{"attention_bias": True, "mlp_bias": True, "q_lora_rank": None, "rope_parameters": _MSCALE},
        },
        "tied_dense": {**_TIED, **_LATENT, **_ROUTED, "first_k_dense_replace": 3},
    },
    "mistral4": {
        "tempered": {**_LATENT, **_ROUTED, "rope_parameters": {**_MSCALE, "llama_4_scaling_beta": 0.7}},
        "half_split_biased": {
            **{**_TIED, **_LATENT, **_ROUTED, "rope_interleave": False, "attention_bias": True, "q_lora_rank": None},
            **{"first_k_dense_replace": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.7, "n_shared_experts": 2},
            "rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 3},
        },
        "untempered_dense": {
            **{**_LATENT, **_ROUTED, "first_k_dense_replace": 3, "num_key_value_heads": 6},
            **{"head_dim": 16, "rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.0}},
        },
    },
    "axk1": {
        "groups": {**_LATENT, **_ROUTED, **_GROUPS, **_DENSE_FIRST, "norm_topk_prob": False},
        "half_split_biased": {
            **{**_TIED, **_LATENT, **_ROUTED, "n_group": 1, "topk_group": 1, "rope_interleave": False, "attention_bias": True},
            **{"rope_parameters": _MSCALE, "mlp_layer_types": ["sparse", "dense", "sparse"], "head_dim": 8},
        },
    },
    "kolibri1": {
        "pattern": {**_FEW, **_PATTERN, "head_dim": 12, "norm_topk_prob": True, "shared_expert_intermediate_size": 20},
        "tied_raw_weights": {
            **{**_TIED, **_FEW, **_PATTERN, "head_dim": 8, "shared_expert_intermediate_size": 20, "norm_topk_prob": False},
            "num_experts_per_tok": 3,
            "rope_parameters": _YARN,
        },
        "no_rope": {**_FEW, "sliding_window": 5, "layer_types": [_FULL] * 3, "shared_expert_intermediate_size": 20},
    },
    "glm4_moe_lite": {
        "plain": {**_LATENT, **_ROUTED},
        "half_split": {
            **{**_LATENT, **_ROUTED, **_GROUPS, "rope_interleave": False, "norm_topk_prob": False, **_TIED},
            "attention_bias": True,
        },
    },
    "youtu": {
        "interleaved": {**_LATENT, "pad_token_id": None},
        "half_split_biased": {
            **_UNTIED,
            **_LATENT,
            "rope_interleave": False,
            "attention_bias": True,
            "rope_parameters": _MSCALE,
            "head_dim": 8,
        },
    },
    "minicpm3": {
        "plain": {**_LATENT, "dim_model_base": 24},
        "biased": {**_UNTIED, **_LATENT, "scale_emb": 2, "dim_model_base": 12, "attention_bias": True, "mlp_bias": True},
    },
    "dots1": {
        "window": {**_ROUTED, **_PATTERN, "norm_topk_prob": True},
        "groups_biased": {**_TIED, **_ROUTED, **_GROUPS, "first_k_dense_replace": 1, "attention_bias": True, "head_dim": 12},
    },
    "glm4_moe": {
        "plain": {**_ROUTED, "routed_scaling_factor": 1.7},
        "groups_normed": {
            **_TIED,
            **_ROUTED,
            **_GROUPS,
            "use_qk_norm": True,
            "norm_topk_prob": False,
            "attention_bias": True,
            "head_dim": 12,
        },
    },
    "solar_open": {
        "plain": {**_ROUTED, "head_dim": 12},
        "groups_biased": {
            **{**_TIED, **_ROUTED, **_GROUPS, "head_dim": 8, "attention_bias": True, "rope_parameters": _YARN},
            "norm_topk_prob": False,
        },
    },
    "exaone_moe": {
        "pattern": {**_FEW, **_PATTERN, "num_shared_experts": 2, "norm_topk_prob": False, "rope_parameters": _YARN},
        "no_rope": {
            **{**_TIED, **_FEW, "sliding_window": 5, "layer_types": [_FULL] * 3, "n_group": 3, "topk_group": 2},
            **{"head_dim": 12, "mlp_layer_types": ["sparse", "dense", "sparse"]},
        },
    },
    "hy_v3": {
        "plain": {**_FEW, "head_dim": 8},
        "shared_twice": {**_TIED, **_FEW, "head_dim": 12, "attention_bias": True, "num_shared_experts": 2, **_DENSE_FIRST},
        "dense_biased": {**_FEW, "head_dim": 8, "mlp_bias": True, **_ALL_DENSE},
    },
    "minimax_m2": {
        "half_turned": {**_MIXTRAL, "head_dim": 12, "rotary_dim": 6},
        "tied": {**_TIED, **_MIXTRAL, "head_dim": 8, "num_experts_per_tok": 3, "rope_parameters": _LINEAR},
    },
    "ernie4_5_moe": {
        "tied": {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 16},
        "untied_biased": {
            **{**_UNTIED, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 16, "use_bias": True, "head_dim": 12},
            **{"moe_layer_interval": 2, "moe_num_shared_experts": 1, "num_hidden_layers": 4},
        },
        "no_shared": {
            **{"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 16, "moe_num_shared_experts": 0},
            **{"moe_layer_start_index": 1, "moe_layer_end_index": 1},
        },
    },
    "aria_text": {
        "plain": {"moe_num_experts": 6, "moe_topk": 2, "intermediate_size": 24},
        "tied_biased": {
            **{**_TIED, "moe_num_experts": 6, "moe_topk": 3, "intermediate_size": 24, "moe_num_shared_experts": 1},
            **{"attention_bias": True, "mlp_bias": True, "head_dim": 12, "rope_parameters": _YARN},
        },
    },
    "hunyuan_v1_dense": {
        "alpha": {"head_dim": 12, "rope_parameters": _ALPHA},
        "tied_biased": {**_TIED, "head_dim": 8, "attention_bias": True},
    },
    "hunyuan_v1_moe": {
        "plain": {"num_experts": 6, "moe_topk": 2, "intermediate_size": 24, "head_dim": 8},
        "list_alpha": {
            **{**_TIED, "num_experts": 6, "moe_topk": [3, 3, 3], "head_dim": 12, "intermediate_size": 24},
            **{"attention_bias": True, "rope_parameters": _ALPHA},
        },
    },
}

_NAMES = {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64}
_TOKENS = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
_STILL = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_PLAIN = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "max_position_embeddings": 64, **_TOKENS}
_XGLM = {"d_model": 48, "num_layers": 3, "attention_heads": 6, "ffn_dim": 40, "max_position_embeddings": 64}
_BIOGPT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_DBRX = {"kv_n_heads": 2, "rope_theta": 1e4}
_DBRX_EXPERTS = {"ffn_hidden_size": 24, "moe_num_experts": 6, "moe_top_k": 2}

BASES = {
    **{family: {**_NAMES, **_TOKENS, **_STILL} for family in ("gpt_bigcode", "gptj", "openai-gpt")},
    "codegen": {**_NAMES, **_TOKENS, **_STILL, "n_head": 4},
    "gpt_neo": {"hidden_size": 48, "num_layers": 3, "num_heads": 6, "max_position_embeddings": 64, **_TOKENS},
    "dbrx": {"d_model": 48, "n_layers": 3, "n_heads": 6, "max_seq_len": 64, **_TOKENS},
    "mpt": {"d_model": 48, "n_layers": 3, "n_heads": 6, "max_seq_len": 64, **_TOKENS},
    **{family: {**_PLAIN, "intermediate_size": 40} for family in ("gpt_neox", "persimmon")},
    "opt": {**_PLAIN, "ffn_dim": 40, "dropout": 0.0},
    "falcon": _PLAIN,
    "ctrl": {**_NAMES, **_TOKENS, "dff": 60, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "modernbert-decoder": {**_PLAIN, "intermediate_size": 40},
    "xglm": {**_XGLM, **_TOKENS, "dropout": 0.0, "attention_dropout": 0.0},
    "bert-generation": {**_PLAIN, "intermediate_size": 40, "is_decoder": True, **_BIOGPT},
    "biogpt": {**_PLAIN, **_BIOGPT, "intermediate_size": 40},
}

CLASSIC = {
    "bert-generation": {"tied": {}, "untied_relu": {**_UNTIED, "hidden_act": "relu", "layer_norm_eps": 1e-5}},
    "openai-gpt": {"tied": {}, "untied_relu": {**_UNTIED, "afn": "relu"}, "silu": {"afn": "swish", "n_positions": 48}},
    "ctrl": {"tied": {}, "untied": {**_UNTIED, "dff": 40}},
    "modernbert-decoder": {
        "pattern": {"layer_types": [_FULL, _SLIDE, _SLIDE], "local_attention": 10},
        "untied_biased": {
            **{
                **_UNTIED,
                "layer_types": [_SLIDE, _FULL, _SLIDE],
                "local_attention": 9,
                "attention_bias": True,
                "mlp_bias": True,
            },
            **{"norm_bias": True, "classifier_bias": True, "decoder_bias": False, "classifier_activation": "relu"},
            "rope_parameters": {_FULL: _YARN, _SLIDE: {"rope_type": "default", "rope_theta": 3e3}},
        },
        "full": {"layer_types": [_FULL] * 3, "hidden_activation": "silu"},
    },
    "gpt_bigcode": {
        "mqa": {},
        "mha_untied": {**_UNTIED, "multi_query": False, "n_inner": 40, "scale_attn_weights": False},
    },
    "gptj": {"partial": {"rotary_dim": 6}, "tied_whole": {**_TIED, "rotary_dim": 8, "n_inner": 40}},
    "codegen": {"partial": {"rotary_dim": 6}, "tied": {**_TIED, "n_inner": 40, "n_head": 8, "rotary_dim": 4}},
    "gpt_neo": {
        "alternating": {"attention_types": [[["global", "local"], 1], [["global"], 1]], "window_size": 5},
        "untied_global": {**_UNTIED, "attention_types": [[["global"], 3]], "intermediate_size": 40},
    },
    "gpt_neox": {
        "parallel": {"rotary_pct": 0.5},
        "sequential_tied": {**_TIED, "use_parallel_residual": False, "attention_bias": False, "rotary_pct": 1.0},
        "scaled": {"rope_parameters": {**_LINEAR, "partial_rotary_factor": 0.5}},
    },
    "opt": {
        "pre": {},
        "post_untied": {**_UNTIED, "do_layer_norm_before": False, "enable_bias": False},
        "narrow": {"word_embed_proj_dim": 24, "do_layer_norm_before": False},
        "untied_narrow": {**_UNTIED, "word_embed_proj_dim": 24},
        "no_final_norm": {"_remove_final_layer_norm": True, "layer_norm_elementwise_affine": False},
    },
    "biogpt": {"scaled": {}, "untied_unscaled": {**_UNTIED, "scale_embedding": False, "layer_norm_eps": 1e-5}},
    "xglm": {"scaled": {}, "untied_unscaled": {**_UNTIED, "scale_embedding": False, "pad_token_id": 1}},
    "falcon": {
        "7b": {},
        "40b_biased": {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, **_UNTIED},
        "11b": {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 40},
        "sequential": {"parallel_attn": False, "multi_query": False, "rope_parameters": _LINEAR},
        "parallel_heads": {"multi_query": False, "bias": True},
        "rw": {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True},
        "rw_parallel": {"alibi": True, "num_attention_heads": 8, **_UNTIED},
        "rw_grouped": {"alibi": True, "new_decoder_architecture": True, "num_kv_heads": 2},
    },
    "phi": {
        "normed": {"qk_layernorm": True},
        "tied_whole": {**_TIED, "partial_rotary_factor": 1.0, "rope_parameters": _YARN},
    },
    "persimmon": {
        "normed": {"rope_parameters": _HALF_LINEAR},
        "tied": {**_TIED, "qk_layernorm": False, "partial_rotary_factor": 1.0},
    },
    "stablelm": {
        "sequential": {"partial_rotary_factor": 0.5},
        "normed": {"partial_rotary_factor": 0.5, "qk_layernorm": True},
        "parallel_biased": {
            **{**_TIED, "use_parallel_residual": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5, "head_dim": 8},
            "rope_parameters": _HALF_LINEAR,
        },
    },
    "mpt": {
        "tied": {},
        "untied_scaled": {**_UNTIED, "n_heads": 3, "attn_config": {"softmax_scale": 0.2, "qk_ln": True, "clip_qkv": 0.7}},
    },
    "dbrx": {
        "clipped": {"attn_config": {**_DBRX, "clip_qkv": 0.7}, "ffn_config": _DBRX_EXPERTS},
        "raw_weights": {
            **{"attn_config": {**_DBRX, "kv_n_heads": 1, "clip_qkv": 8.0}, "rope_parameters": _YARN},
            "ffn_config": {**_DBRX_EXPERTS, "moe_normalize_expert_weights": None},
        },
    },
    "olmo": {"clipped": {"clip_qkv": 0.7}, "tied_biased": {**_TIED, "attention_bias": True, "rope_parameters": _YARN}},
    "nanochat": {"plain": {}, "tied_biased": {**_TIED, "attention_bias": True, "final_logit_softcapping": None}},
    "apertus": {"learned": {}, "tied_relu2": {**_TIED, "hidden_act": "relu2", "attention_bias": True, "head_dim": 12}},
}

CHOICES = {**DENSE, **EXPERTS, **CLASSIC}
