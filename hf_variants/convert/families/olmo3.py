"""OLMo 3: OLMo 2 with a window on chosen layers and one RoPE per layer type."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    LLAMA_WEIGHTS,
    MODERN_KEYS,
    all_biases,
    rope_per_layer_type,
    window_of_layer_types,
)

FAMILY = Family(
    model_type="olmo3",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(norm_placement="post", qk_norm="full", norm_weight_in_fp32=True),
        HeadDim(),
        all_biases(),
        window_of_layer_types(),
        rope_per_layer_type(),
    ],
    weights=LLAMA_WEIGHTS,
)
