"""Hunyuan 3: Qwen3 attention, sigmoid routing with a selection bias kept beside the router.

`enable_moe_fp32_combine` changes rounding in half precision alone, so it stays native.
"""

from hf_variants.convert.config_map import Always, HeadDim, Same
from hf_variants.convert.expert_maps import (
    DENSE_MLP,
    EXPERTS_WITH_BIAS_BESIDE,
    LAYER_LIST,
    SIGMOID_ROUTER,
    Experts,
    same_names,
)
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, MODERN_KEYS, all_biases, rope
from hf_variants.convert.weight_rules import keep

_KEYS = same_names("num_experts", "num_shared_experts", "num_experts_per_tok", "moe_intermediate_size")

FAMILY = Family(
    model_type="hy_v3",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act", "mlp_bias"),
        Always(qk_norm="head"),
        HeadDim(declared=True),
        all_biases(),
        rope(),
        Experts(
            {**_KEYS, "routed_scaling_factor": "router_scaling_factor"},
            LAYER_LIST,
            {**SIGMOID_ROUTER, "norm_topk_prob": True},
        ),
    ],
    weights=[
        *EMBEDDINGS,
        *keep("model.layers.*.self_attn.**", "model.layers.*.*_layernorm.weight"),
        *EXPERTS_WITH_BIAS_BESIDE,
        *keep("model.layers.*.mlp.shared_experts.**"),
        *DENSE_MLP,
    ],
)
