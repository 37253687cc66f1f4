"""K-EXAONE: EXAONE 4 attention under norms before the branches, with the experts of DeepSeek-V3."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.expert_maps import GROUP_KEYS, LAYER_LIST, SIGMOID_ROUTER, Experts, same_names
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, rope, rope_on_sliding_layers, window_of_layer_types

_KEYS = same_names(
    *("num_experts", "num_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "routed_scaling_factor")
)

FAMILY = Family(
    model_type="exaone_moe",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(qk_norm="head"),
        HeadDim(),
        window_of_layer_types(),
        rope(),
        rope_on_sliding_layers(unless_windowless=True),
        Experts({**_KEYS, **GROUP_KEYS}, LAYER_LIST, SIGMOID_ROUTER),
    ],
    weights=LLAMA_WEIGHTS,
)
