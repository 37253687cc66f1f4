"""Qwen3: Qwen2 with an RMSNorm on each head of q and k, and biases behind a switch."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope, window_of_layer_types

FAMILY = Family(
    model_type="qwen3",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(qk_norm="head"),
        HeadDim(declared=True),
        all_biases(),
        window_of_layer_types("use_sliding_window"),
        rope(),
    ],
    weights=LLAMA_WEIGHTS,
)
