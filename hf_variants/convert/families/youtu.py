"""Youtu-LLM: the latent attention of DeepSeek-V3 with a dense feed-forward.

Natively the embedding row of the pad is zeroed on every load, whatever the checkpoint holds.
"""

from hf_variants.convert.config_map import Key, Same
from hf_variants.convert.latent_maps import LATENT_KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope

FAMILY = Family(
    model_type="youtu",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Key("rope_interleaved", "rope_interleave"),
        *LATENT_KEYS,
        all_biases(),
        rope(),
    ],
    weights=LLAMA_WEIGHTS,
)
