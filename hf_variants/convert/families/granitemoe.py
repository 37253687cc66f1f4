"""Granite MoE: Granite with experts in every layer.

The router takes the top k of the logits and their softmax, which equals the softmax over all experts with the chosen
weights normalised.
"""

from hf_variants.convert.config_map import HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    EMBEDDINGS,
    MODERN_KEYS,
    all_biases,
    aux_loss,
    every_layer_sparse,
    granite_multipliers,
    rope,
)
from hf_variants.convert.weight_rules import keep, rename

_LAYER = "model.layers.*."

KEYS = [
    *MODERN_KEYS,
    Same("hidden_act"),
    granite_multipliers("logits_scaling"),
    HeadDim(),
    all_biases(),
    rope(),
    every_layer_sparse(),
    aux_loss(),
]
WEIGHTS = [
    *EMBEDDINGS,
    *keep(_LAYER + "self_attn.**", _LAYER + "*_layernorm.weight"),
    rename(_LAYER + "block_sparse_moe.router.weight", _LAYER + "mlp.gate.weight"),
    rename(_LAYER + "block_sparse_moe.experts.*", _LAYER + "mlp.experts.*"),
]

FAMILY = Family(model_type="granitemoe", config=KEYS, weights=WEIGHTS)
