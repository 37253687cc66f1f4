"""EXAONE 4: norms inside the residual, QK-norm, and RoPE on sliding layers only once there is a window."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, rope, rope_on_sliding_layers, window_of_layer_types

FAMILY = Family(
    model_type="exaone4",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(norm_placement="post", qk_norm="head"),
        HeadDim(),
        window_of_layer_types(),
        rope(),
        rope_on_sliding_layers(unless_windowless=True),
    ],
    weights=LLAMA_WEIGHTS,
)
