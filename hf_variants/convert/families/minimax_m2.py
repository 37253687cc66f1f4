"""MiniMax-M2: q and k normalised over all heads, partial rotation, sigmoid routing with a selection bias.

`rotary_dim` of published configs is folded into the share of rotated dimensions.
"""

from hf_variants.convert.config_map import Always, Both, HeadDim, Same, TrainingOnly
from hf_variants.convert.expert_maps import EVERY_LAYER, EXPERTS_WITH_BIAS_BESIDE, SIGMOID_ROUTER, Experts, no_softmax_balance
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, MODERN_KEYS, rope
from hf_variants.convert.weight_rules import keep

FAMILY = Family(
    model_type="minimax_m2",
    config=[
        *MODERN_KEYS,
        Same("hidden_act"),
        Both(lambda native: {"intermediate_size": native.intermediate_size}),
        Always(qk_norm="full"),
        HeadDim(declared=True),
        rope(partial=True),
        Experts(
            {
                "num_experts": "num_local_experts",
                "num_experts_per_tok": "num_experts_per_tok",
                "moe_intermediate_size": "intermediate_size",
            },
            EVERY_LAYER,
            {**SIGMOID_ROUTER, "norm_topk_prob": True},
        ),
        no_softmax_balance(),
        TrainingOnly("router_jitter_noise", "multiplies the input of router and experts by noise"),
    ],
    weights=[
        *EMBEDDINGS,
        *keep("model.layers.*.self_attn.**", "model.layers.*.*_layernorm.weight"),
        *EXPERTS_WITH_BIAS_BESIDE,
    ],
)
