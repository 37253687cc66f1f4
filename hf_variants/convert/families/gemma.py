"""Gemma: norm weights stored minus one, scaled embeddings, heads wider than hidden_size / num_attention_heads.

`hidden_activation` is never read natively, unlike in Gemma 2, so it stays native.
"""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    LLAMA_WEIGHTS,
    MODERN_KEYS,
    all_biases,
    no_bidirectional,
    rope,
    scaled_embedding,
)

FAMILY = Family(
    model_type="gemma",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(norm_unit_offset=True, norm_weight_in_fp32=True),
        scaled_embedding(),
        HeadDim(declared=True),
        all_biases(),
        rope(),
        no_bidirectional(),
    ],
    weights=LLAMA_WEIGHTS,
)
