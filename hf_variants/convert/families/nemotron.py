"""Nemotron: LayerNorm with weights stored minus one, a plain feed-forward (squared ReLU), partial rotation."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LAYERNORM_WEIGHTS, all_biases, layernorm_keys, rope

FAMILY = Family(
    model_type="nemotron",
    config=[
        *layernorm_keys("norm_eps"),
        Same("intermediate_size", "hidden_act", "mlp_bias"),
        Always(mlp_type="plain", norm_unit_offset=True),
        HeadDim(declared=True),
        all_biases(),
        rope(partial=True),
    ],
    weights=LAYERNORM_WEIGHTS,
)
