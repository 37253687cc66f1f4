"""Tiny random native models: one entry per family and per choice that its config offers.

Every parameter and persistent buffer is randomised, norm weights, biases, sinks and selection biases too: at their
initial values of one and zero a swapped or dropped tensor would go unseen.
"""

import copy

import torch
from native_choices import BASES, CHOICES
from transformers import CONFIG_MAPPING

from hf_variants.convert.heads import native_class

_COMMON = {
    **{
        "vocab_size": 64,
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    },
    **{"intermediate_size": 40, "max_position_embeddings": 64},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None},
}
_SLIDE, _FULL = "sliding_attention", "full_attention"
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3["original_max_position_embeddings"] = 16
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 5000.0}
_MSCALE = {**_YARN, "mscale": 0.707, "mscale_all_dim": 1.0, "beta_fast": 16.0, "beta_slow": 2.0}
_LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [2.0, 3.0, 5.0, 7.0]}
_LONG_PHI = {"original_max_position_embeddings": 8, "rope_parameters": {**_LONG, "rope_theta": 1e4}}
_DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}

_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24}
_QWEN_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
_LATENT = {"q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 10}
_DEEPSEEK = {
    **{**_LATENT, "num_key_value_heads": 6, "first_k_dense_replace": 1},
    **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "n_group": 4, "topk_group": 2},
}
_GPT2 = {"vocab_size": 64, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64, "pad_token_id": 0}
_GPT2.update(bos_token_id=1, eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
_BLOOM = {"vocab_size": 64, "hidden_size": 48, "n_layer": 3, "n_head": 6, "pad_token_id": 0, "eos_token_id": None}

# The balance loss is taken over all layers at once natively and per layer in ours: equal where one layer is sparse.
_CHOICES = {
    "llama": {
        "plain": {},
        "tied_biased": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        "wide_heads_mqa": {"head_dim": 12, "num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh"},
        "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 2e4}},
        "dynamic": {"rope_parameters": _DYNAMIC, "max_position_embeddings": 8},
        "yarn": {"rope_parameters": {**_YARN, "attention_factor": 1.3, "truncate": False}},
        "llama3": {"rope_parameters": _LLAMA3},
        "longrope": {"rope_parameters": {**_LONG, "factor": 3.0, "original_max_position_embeddings": 8}},
        "old_keys": {"rope_theta": 3e4, "rope_scaling": {"type": "linear", "factor": 2.0}, "pretraining_tp": 2},
    },
    "mistral": {
        "window": {"sliding_window": 5},
        "full": {"sliding_window": None, "head_dim": 12, "num_key_value_heads": 3},
        "yarn": {"sliding_window": 5, "tie_word_embeddings": True},
    },
    "qwen2": {
        "full": {},
        "tied_window": {
            **{"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        },
        "unused_window": {"use_sliding_window": True, "sliding_window": 5, "head_dim": 12, "rope_parameters": _YARN},
    },
    "qwen3": {
        "wide_heads": {"head_dim": 12, "attention_bias": True},
        "window": {
            **{"head_dim": 8, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
            "tie_word_embeddings": True,
        },
        "dynamic": {"head_dim": 8, "rope_parameters": _DYNAMIC, "max_position_embeddings": 8},
    },
    "gemma2": {
        "window": {"head_dim": 12, "sliding_window": 5, "query_pre_attn_scalar": 17},
        "hot_caps": {
            "head_dim": 8,
            "sliding_window": 5,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 4.0,
        },
        "untied_uncapped": {
            **{"head_dim": 8, "tie_word_embeddings": False, "attention_bias": True, "attn_logit_softcapping": None},
            **{"final_logit_softcapping": None, "layer_types": [_FULL] * 3, "rope_parameters": _YARN},
        },
    },
    "gemma3_text": {
        "pattern": {"head_dim": 12, "sliding_window": 5, "sliding_window_pattern": 2, "query_pre_attn_scalar": 20},
        "scaled_full": {
            **{"head_dim": 8, "sliding_window": 5, "layer_types": [_SLIDE, _FULL, _SLIDE], "rope_theta": 5e5},
            **{"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 2e3},
        },
        "dead_cap": {
            **{
                "head_dim": 8,
                "layer_types": [_FULL] * 3,
                "attn_logit_softcapping": 0.5,
                "final_logit_softcapping": 3.0,
            },
            **{"tie_word_embeddings": False, "attention_bias": True},
        },
    },
    "olmo2": {
        "plain": {},
        "tied_biased": {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 3},
        "yarn": {"rope_parameters": _YARN},
    },
    "phi3": {
        "plain": {"original_max_position_embeddings": 64, "head_dim": 12},
        "tied_partial_window": {"tie_word_embeddings": True, "partial_rotary_factor": 0.5, "sliding_window": 5},
        "longrope": _LONG_PHI,
        "longrope_factor": {**_LONG_PHI, "head_dim": 8, "rope_parameters": {**_LONG, "factor": 2.5, "attention_factor": 1.2}},
    },
    "mixtral": {
        "plain": _EXPERTS,
        "balanced": {**_EXPERTS, "num_hidden_layers": 1, "output_router_logits": True, "router_aux_loss_coef": 0.5},
        "tied_window": {**_EXPERTS, "tie_word_embeddings": True, "sliding_window": 5, "num_experts_per_tok": 3},
        "silent_coefficient": {**_EXPERTS, "router_aux_loss_coef": 0.02, "head_dim": 12},
    },
    "qwen3_moe": {
        "plain": _QWEN_EXPERTS,
        "first_dense": {**_QWEN_EXPERTS, "mlp_only_layers": [0], "norm_topk_prob": False, "head_dim": 12},
        "every_second_balanced": {
            **{**_QWEN_EXPERTS, "decoder_sparse_step": 2, "output_router_logits": True, "router_aux_loss_coef": 0.3},
            **{"attention_bias": True, "tie_word_embeddings": True},
        },
        "window": {**_QWEN_EXPERTS, "use_sliding_window": True, "sliding_window": 5},
        "all_dense": {**_QWEN_EXPERTS, "mlp_only_layers": [0, 1, 2]},
    },
    "deepseek_v3": {
        "groups": _DEEPSEEK,
        "half_split_uncompressed": {
            **_DEEPSEEK,
            "rope_interleave": False,
            "q_lora_rank": None,
            "attention_bias": True,
        },
        "interleaved_uncompressed": {**_DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1},
        "all_sparse_yarn": {**_DEEPSEEK, "first_k_dense_replace": 0, "rope_parameters": _MSCALE},
        "yarn_without_mscale": {**_DEEPSEEK, "rope_parameters": _YARN, "rope_interleave": False},
        "biased_raw_weights": {**_DEEPSEEK, "attention_bias": True, "norm_topk_prob": False, "n_shared_experts": 2},
        "all_dense_tied": {**_DEEPSEEK, "first_k_dense_replace": 3, "tie_word_embeddings": True, "head_dim": 8},
    },
    "gpt_oss": {
        "yarn": {**_EXPERTS, "head_dim": 12, "sliding_window": 5},
        "plain_rope": {
            **{
                **_EXPERTS,
                "head_dim": 8,
                "sliding_window": 5,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            },
            **{"swiglu_limit": 1.0, "num_experts_per_tok": 3, "tie_word_embeddings": True},
        },
        "balanced_full": {
            **{**_EXPERTS, "head_dim": 8, "num_hidden_layers": 1, "layer_types": [_FULL], "attention_bias": False},
            **{"output_router_logits": True, "router_aux_loss_coef": 0.4},
        },
    },
    "gpt2": {
        "plain": {},
        "untied": {"tie_word_embeddings": False, "n_inner": 40, "activation_function": "gelu"},
        "unscaled": {"scale_attn_weights": False, "n_inner": 192},
        "scaled_by_layer": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    },
    "bloom": {
        "plain": {},
        "normed_residual": {"apply_residual_connection_post_layernorm": True, "seq_length": 2048},
        "untied": {"tie_word_embeddings": False, "n_head": 4},
    },
    **CHOICES,
}
_BASES = {"gpt2": _GPT2, "bloom": _BLOOM, **BASES}

# What the last case of a family has unless it says otherwise, so that each is tried with it.
_LAST = {"num_key_value_heads": 1, "rope_parameters": _YARN, "head_dim": 12}

CASES = [(family, name) for family, choices in _CHOICES.items() for name in choices]
CASE_IDS = [f"{family}-{name}" for family, name in CASES]


def native_config(family, name, **changes):
    """A fresh native config of one case."""
    last = _LAST if family not in _BASES and name == list(_CHOICES[family])[-1] else {}
    keys = {**_BASES.get(family, _COMMON), **last, **_CHOICES[family][name], **changes}
    return CONFIG_MAPPING[family](**copy.deepcopy(keys))


def native_model(family, name, seed=0, **changes):
    """A native model of one case with everything random, in fp32 and eval mode."""
    torch.manual_seed(seed)
    config = native_config(family, name, **changes)
    model = native_class(config, "causal_lm")._from_config(config, dtype=torch.float32)
    randomise(model)
    return model.eval()


@torch.no_grad()
def randomise(model):
    """Random values for every parameter and persistent buffer, of sizes that keep activations near one."""
    for name, tensor in model.state_dict().items():
        name = name.replace("norm_attn_norm", "block")  # DBRX: a block around norms and attention
        if "norm" in name or ".ln_" in name:
            offset = 0.0 if "bias" in name or model.config.model_type.startswith("gemma") else 1.0
            tensor.normal_(std=0.3).add_(offset)
        elif "embed" in name or "wte" in name or "wpe" in name:
            tensor.normal_(std=1.0)
        else:
            tensor.normal_(std=0.5 if tensor.dim() <= 1 else tensor.shape[-1] ** -0.5)
        if name == "lm_head.bias" and "lm_head.decoder.bias" in model.state_dict() and not model.config.tie_word_embeddings:
            tensor.zero_()  # natively it feeds nothing: BERT for generation reads the bias of the decoder


def token_ids(batch, length, seed=1):
    """Random ids without the padding id."""
    return torch.randint(1, 64, (batch, length), generator=torch.Generator().manual_seed(seed))
