"""Solar Open: Llama attention with the experts of DeepSeek-V3 in every layer."""

from hf_variants.convert.config_map import Both, HeadDim, Same
from hf_variants.convert.expert_maps import (
    DEEPSEEK_KEYS,
    EVERY_LAYER,
    GROUP_KEYS,
    SIGMOID_ROUTER,
    Experts,
    needs_groups,
    needs_shared_experts,
)
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, qkv_biases, rope

FAMILY = Family(
    model_type="solar_open",
    config=[
        *MODERN_KEYS,
        Same("hidden_act"),
        Both(lambda native: {"intermediate_size": native.moe_intermediate_size}),
        HeadDim(declared=True),
        qkv_biases(),
        rope(),
        needs_groups(),
        needs_shared_experts(),
        Experts({**DEEPSEEK_KEYS, **GROUP_KEYS}, EVERY_LAYER, SIGMOID_ROUTER),
    ],
    weights=LLAMA_WEIGHTS,
)
