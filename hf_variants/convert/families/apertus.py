"""Apertus: Llama with QK-norm and a plain feed-forward whose activation (xIELU) is learned."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, MODERN_KEYS, all_biases, rope
from hf_variants.convert.weight_rules import keep, rename

_LAYER = "model.layers.*."

FAMILY = Family(
    model_type="apertus",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(qk_norm="head", mlp_type="plain"),
        HeadDim(),
        all_biases(),
        rope(),
    ],
    weights=[
        *EMBEDDINGS,
        *keep(_LAYER + "self_attn.**", _LAYER + "mlp.**"),
        rename(_LAYER + "attention_layernorm.weight", _LAYER + "input_layernorm.weight"),
        rename(_LAYER + "feedforward_layernorm.weight", _LAYER + "post_attention_layernorm.weight"),
    ],
)
