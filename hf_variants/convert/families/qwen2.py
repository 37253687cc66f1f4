"""Qwen2: Llama with biases on q, k, v alone and a window on chosen layers."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, rope, window_of_layer_types

FAMILY = Family(
    model_type="qwen2",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(attention_bias=True, attention_out_bias=False),
        HeadDim(),
        window_of_layer_types("use_sliding_window"),
        rope(),
    ],
    weights=LLAMA_WEIGHTS,
)
