"""Seed-OSS: Llama with separate switches for the biases of q, k, v and of o, and dropout on the branches."""

from hf_variants.convert.config_map import HeadDim, Key, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, rope

FAMILY = Family(
    model_type="seed_oss",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act", "attention_bias", "attention_out_bias", "mlp_bias"),
        Key("hidden_dropout", "residual_dropout"),
        HeadDim(declared=True),
        rope(),
    ],
    weights=LLAMA_WEIGHTS,
)
