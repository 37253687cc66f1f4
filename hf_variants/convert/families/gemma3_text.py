"""Gemma 3 (text): Gemma 2 with QK-norm and one RoPE per layer type.

Its `attn_logit_softcapping` is stored but never passed to the attention, so it means nothing here and stays native.
"""

from hf_variants.convert.config_map import Always
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, gemma_keys, rope_per_layer_type

FAMILY = Family(
    model_type="gemma3_text",
    config=[*gemma_keys(), Always(qk_norm="head"), rope_per_layer_type()],
    weights=LLAMA_WEIGHTS,
)
