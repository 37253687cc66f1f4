"""A.X-K1: DeepSeek-V3 with compressed queries and one more norm, on the output of its sparse layers."""

from hf_variants.convert.config_map import Key, Same
from hf_variants.convert.expert_maps import (
    DEEPSEEK_KEYS,
    GROUP_KEYS,
    LAYER_LIST,
    SIGMOID_ROUTER,
    Experts,
    needs_groups,
    needs_shared_experts,
)
from hf_variants.convert.latent_maps import LATENT_KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope
from hf_variants.convert.weight_rules import rename

FAMILY = Family(
    model_type="axk1",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Key("rope_interleaved", "rope_interleave"),
        *LATENT_KEYS,
        all_biases(),
        rope(),
        needs_groups(),
        needs_shared_experts(),
        Experts({**DEEPSEEK_KEYS, **GROUP_KEYS}, LAYER_LIST, {**SIGMOID_ROUTER, "expert_output_norm": True}),
    ],
    weights=[
        rename("model.layers.*.mlp.post_mlp_layernorm.weight", "model.layers.*.mlp.output_norm.weight"),
        *LLAMA_WEIGHTS,
    ],
)
