"""Granite: Llama with four multipliers (embeddings, attention scores, branches, logits)."""

from hf_variants.convert.config_map import HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, granite_multipliers, rope

FAMILY = Family(
    model_type="granite",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act", "mlp_bias"),
        granite_multipliers("logits_scaling"),
        HeadDim(),
        all_biases(),
        rope(),
    ],
    weights=LLAMA_WEIGHTS,
)
