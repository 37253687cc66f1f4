"""Jais 2: Llama with LayerNorm and a plain feed-forward (squared ReLU)."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LAYERNORM_WEIGHTS, all_biases, layernorm_keys, rope

FAMILY = Family(
    model_type="jais2",
    config=[
        *layernorm_keys("layer_norm_eps"),
        Same("intermediate_size", "hidden_act", "mlp_bias"),
        Always(mlp_type="plain"),
        HeadDim(declared=True),
        all_biases(),
        rope(),
    ],
    weights=LAYERNORM_WEIGHTS,
)
