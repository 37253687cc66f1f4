"""Mellum: Qwen3-MoE attention and experts with one RoPE per layer type and listed sparse layers."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.expert_maps import LAYER_LIST, Experts
from hf_variants.convert.families.qwen3_moe import KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    LLAMA_WEIGHTS,
    MODERN_KEYS,
    all_biases,
    rope_per_layer_type,
    window_of_layer_types,
)

FAMILY = Family(
    model_type="mellum",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(qk_norm="head"),
        HeadDim(declared=True),
        all_biases(),
        window_of_layer_types(),
        rope_per_layer_type(),
        Experts(KEYS, LAYER_LIST, aux_loss=True),
    ],
    weights=LLAMA_WEIGHTS,
)
