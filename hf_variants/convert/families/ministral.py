"""Ministral: Mistral whose window holds on chosen layers. Natively a missing `head_dim` fails; ours takes the quotient."""

from hf_variants.convert.config_map import HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, rope, window_of_layer_types

FAMILY = Family(
    model_type="ministral",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        HeadDim(declared=True),
        window_of_layer_types(),
        rope(),
    ],
    weights=LLAMA_WEIGHTS,
)
