"""Qwen3-MoE: Qwen3 attention with experts in chosen layers and one window for all layers or none."""

from hf_variants.convert.config_map import Always, Both, HeadDim, Same
from hf_variants.convert.expert_maps import STEPS, Experts, same_names
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, one_window, rope

KEYS = same_names("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")

FAMILY = Family(
    model_type="qwen3_moe",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(qk_norm="head"),
        HeadDim(),
        all_biases(),
        one_window(),
        Both(writer=lambda config: {"use_sliding_window": config.sliding_window is not None}),
        rope(),
        Experts(KEYS, STEPS, aux_loss=True),
    ],
    weights=LLAMA_WEIGHTS,
)
