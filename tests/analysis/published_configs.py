"""The published `config.json` of every preset's model, as its authors wrote it (keys that change nothing are left out), and
the exact number of parameters of transformers' own class of it.
"""

LLAMA = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-5}
DEEPSEEK = {
    **{"num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512},
    **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 163840},
}
DEEPSEEK_YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}

PUBLISHED = {
    "llama-2-7b": (
        "llama",
        {**LLAMA, "vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 4096},
        6_738_415_616,
    ),
    "llama-3-8b": (
        "llama",
        {
            **LLAMA,
            **{"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8, "rope_theta": 500000.0},
            **{"max_position_embeddings": 8192, "bos_token_id": 128000, "eos_token_id": 128001},
        },
        8_030_261_248,
    ),
    "llama-3.1-8b": (
        "llama",
        {
            **LLAMA,
            **{"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8, "rope_theta": 500000.0},
            **{"max_position_embeddings": 131072, "bos_token_id": 128000, "eos_token_id": 128001},
            "rope_scaling": {
                **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
                "original_max_position_embeddings": 8192,
            },
        },
        8_030_261_248,
    ),
    "mistral-7b": (
        "mistral",
        {
            **LLAMA,
            **{"vocab_size": 32000, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096},
            **{"max_position_embeddings": 32768, "rope_theta": 10000.0},
        },
        7_241_732_096,
    ),
    "mixtral-8x7b": (
        "mixtral",
        {
            **LLAMA,
            **{"vocab_size": 32000, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": None},
            **{"max_position_embeddings": 32768, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
            **{"router_aux_loss_coef": 0.02, "output_router_logits": False},
        },
        46_702_792_704,
    ),
    "qwen2-72b": (
        "qwen2",
        {
            **{"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80},
            **{"num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072},
            **{"rope_theta": 1e6, "rms_norm_eps": 1e-5, "use_sliding_window": False, "sliding_window": 131072},
            **{"bos_token_id": 151643, "eos_token_id": 151643},
        },
        72_706_203_648,
    ),
    "qwen3-8b": (
        "qwen3",
        {
            **{"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36},
            **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960},
            **{"rope_theta": 1e6, "rms_norm_eps": 1e-6, "use_sliding_window": False, "tie_word_embeddings": False},
            **{"bos_token_id": 151643, "eos_token_id": 151645},
        },
        8_190_735_360,
    ),
    "gemma-2-9b": (
        "gemma2",
        {
            **{"vocab_size": 256000, "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42},
            **{"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "max_position_embeddings": 8192},
            **{"sliding_window": 4096, "query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh"},
            **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        },
        9_241_705_984,
    ),
    "gemma-3-4b": (
        "gemma3_text",
        {
            **{"vocab_size": 262208, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
            **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072},
            **{"sliding_window": 1024, "query_pre_attn_scalar": 256, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        3_880_263_168,
    ),
    "deepseek-v2": (
        "deepseek_v2",
        {
            **DEEPSEEK,
            **{"vocab_size": 102400, "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 60},
            **{"moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6},
            **{"n_group": 8, "topk_group": 3, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0},
            **{"norm_topk_prob": False, "first_k_dense_replace": 1, "bos_token_id": 100000, "eos_token_id": 100001},
            "rope_scaling": {**DEEPSEEK_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
        235_741_434_880,
    ),
    "deepseek-v3": (
        "deepseek_v3",
        {
            **DEEPSEEK,
            **{"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61},
            **{"moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8},
            **{"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": True},
            **{"first_k_dense_replace": 3, "bos_token_id": 0, "eos_token_id": 1},
            "rope_scaling": {**DEEPSEEK_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        671_026_404_352,
    ),
    "gpt2": (
        "gpt2",
        {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024},
        124_439_808,
    ),
    "bloom-560m": (
        "bloom",
        {
            **{"vocab_size": 250880, "hidden_size": 1024, "n_layer": 24, "n_head": 16, "hidden_dropout": 0.0},
            **{"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3},
        },
        559_214_592,
    ),
    "bloom-176b": (
        "bloom",
        {
            **{"vocab_size": 250880, "hidden_size": 14336, "n_layer": 70, "n_head": 112, "hidden_dropout": 0.0},
            **{"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3},
        },
        176_247_271_424,
    ),
    "mpt-7b": (
        "mpt",
        {
            **{"vocab_size": 50432, "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4},
            **{"max_seq_len": 2048, "no_bias": True, "attn_config": {"alibi": True, "attn_type": "multihead_attention"}},
        },
        6_649_286_656,
    ),
    "phi-3-mini": (
        "phi3",
        {
            **{"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32},
            **{"num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096},
            **{"original_max_position_embeddings": 4096, "sliding_window": 2047, "rope_theta": 10000.0},
            **{"rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 32000, "pad_token_id": 32000},
        },
        3_821_079_552,
    ),
    "olmo-2-7b": (
        "olmo2",
        {
            **{"vocab_size": 100352, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
            **{"num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096},
            **{"rope_theta": 500000.0, "rms_norm_eps": 1e-6, "eos_token_id": 100257, "pad_token_id": 100277},
        },
        7_298_617_344,
    ),
    "gpt-oss-20b": (
        "gpt_oss",
        {
            **{"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24},
            **{"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32},
            **{"num_experts_per_tok": 4, "sliding_window": 128, "rope_theta": 150000.0, "swiglu_limit": 7.0},
            **{"max_position_embeddings": 131072, "attention_bias": True, "eos_token_id": 200002, "pad_token_id": 199999},
            "rope_scaling": {
                **{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
                "original_max_position_embeddings": 4096,
            },
        },
        20_914_757_184,
    ),
    "bert-base": ("bert", {}, 109_514_298),
    "roberta-base": (
        "roberta",
        {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        124_697_433,
    ),
    "modernbert-base": ("modernbert", {}, 149_655_232),
}
