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
    "iquestcoder": {"biased": {"head_dim": 12, "attention_bias": True, "mlp_bias": True}},
    "internlm3": {"plain": {"head_dim": 8}, "biased": {"head_dim": 12, "attention_bias": True, "mlp_bias": True, **_TIED}},
    "gemma": {
        "wide": {"head_dim": 12, "hidden_act": "gelu"},
        "untied_biased": {**_UNTIED, "head_dim": 8, "attention_bias": True, "rope_parameters": _LLAMA3},
    },
    "vaultgemma": {
        "pattern": {**_PATTERN, "head_dim": 12, "query_pre_attn_scalar": 17},
        "hot_caps": {**_UNTIED, "head_dim": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0},
    },
    "granite": {"plain": _GRANITE, "tied_biased": {**_TIED, **_GRANITE, "attention_bias": True, "mlp_bias": True}},
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
}

CHOICES = {**DENSE}
BASES = {}
