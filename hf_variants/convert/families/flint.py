"""Flint: QK-norm and attention sinks, RoPE on sliding layers alone, sigmoid routing beside an ungated shared expert."""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.expert_maps import (
    DENSE_MLP,
    ROUTED_EXPERTS,
    STEPS,
    Experts,
    no_softmax_balance,
    same_names,
    shared_experts,
)
from hf_variants.convert.families.qwen3_moe import KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    EMBEDDINGS,
    MODERN_KEYS,
    all_biases,
    rope,
    rope_on_sliding_layers,
    window_of_layer_types,
)
from hf_variants.convert.weight_rules import keep

_LAYER = "model.layers.*."

FAMILY = Family(
    model_type="flint",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(qk_norm="head", attention_sinks=True, sinks_in_fp32=True, norm_weight_in_fp32=True),
        HeadDim(declared=True),
        all_biases(),
        window_of_layer_types(),
        rope(),
        rope_on_sliding_layers(),
        Experts(
            {**KEYS, **same_names("shared_expert_intermediate_size")},
            STEPS,
            {"router_scoring": "sigmoid", "num_shared_experts": 1, "router_weight_in_fp32": True},
        ),
        no_softmax_balance(),
    ],
    weights=[
        *EMBEDDINGS,
        *keep(_LAYER + "self_attn.**", _LAYER + "*_layernorm.weight", _LAYER + "mlp.gate.weight"),
        *ROUTED_EXPERTS,
        *shared_experts("shared_expert"),
        *DENSE_MLP,
    ],
)
