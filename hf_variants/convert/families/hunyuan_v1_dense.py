"""Hunyuan dense: Llama with QK-norm after RoPE, and a static NTK base behind `alpha`.

Natively a missing `head_dim` fails; ours takes the quotient.
"""

from hf_variants.convert.config_map import Always, Both, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, MODERN_KEYS, all_biases, rope
from hf_variants.convert.weight_rules import keep, rename

_LAYER = "model.layers.*."


def _read_alpha(native):
    given = native.rope_parameters
    if given["rope_type"] != "dynamic" or not given.get("alpha"):
        return {}
    return {"rope_parameters": {"rope_type": "ntk", "factor": given["alpha"], "rope_theta": given["rope_theta"]}}


KEYS = [
    *MODERN_KEYS,
    Same("hidden_act"),
    Always(qk_norm="head", qk_norm_after_rope=True),
    HeadDim(declared=True),
    all_biases(),
    rope(),
    Both(_read_alpha),
]
ATTENTION = [
    *EMBEDDINGS,
    *keep(*(f"{_LAYER}self_attn.{part}_proj.*" for part in "qkvo"), _LAYER + "*_layernorm.weight"),
    rename(_LAYER + "self_attn.query_layernorm.weight", _LAYER + "self_attn.q_norm.weight"),
    rename(_LAYER + "self_attn.key_layernorm.weight", _LAYER + "self_attn.k_norm.weight"),
]

FAMILY = Family(
    model_type="hunyuan_v1_dense",
    config=[*KEYS, Same("intermediate_size")],
    weights=[*ATTENTION, *keep(_LAYER + "mlp.**")],
)
