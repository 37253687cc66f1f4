"""Solar Open: Llama attention with the experts of DeepSeek-V3 in every layer."""

from hf_variants.convert.config_map import Both, HeadDim, Same
from hf_variants.convert.expert_maps import EVERY_LAYER, deepseek_v3_experts
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
        *deepseek_v3_experts(EVERY_LAYER),
    ],
    weights=LLAMA_WEIGHTS,
)
