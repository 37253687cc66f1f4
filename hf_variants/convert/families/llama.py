"""Llama: the family that the names of ours come from."""

from hf_variants.convert.config_map import HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope

FAMILY = Family(
    model_type="llama",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act", "mlp_bias"),
        HeadDim(declared=True),
        all_biases(),
        rope(),
    ],
    weights=LLAMA_WEIGHTS,
)
