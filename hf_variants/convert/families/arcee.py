"""Arcee: Llama with a plain feed-forward (squared ReLU)."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope

FAMILY = Family(
    model_type="arcee",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act", "mlp_bias"),
        Always(mlp_type="plain"),
        HeadDim(declared=True),
        all_biases(),
        rope(),
    ],
    weights=LLAMA_WEIGHTS,
)
