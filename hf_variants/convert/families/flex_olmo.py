"""FlexOlmo: OLMo 2 with experts in every layer, as wide as `intermediate_size`."""

from hf_variants.convert.config_map import Always, Both, HeadDim, Same
from hf_variants.convert.expert_maps import EVERY_LAYER, Experts, same_names
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope

EXPERTS = Experts(
    {**same_names("num_experts", "num_experts_per_tok", "norm_topk_prob"), "moe_intermediate_size": "intermediate_size"},
    EVERY_LAYER,
    aux_loss=True,
)

FAMILY = Family(
    model_type="flex_olmo",
    config=[
        *MODERN_KEYS,
        Same("hidden_act"),
        Both(lambda native: {"intermediate_size": native.intermediate_size}),
        Always(norm_placement="post", qk_norm="full", norm_weight_in_fp32=True),
        HeadDim(),
        all_biases(),
        rope(),
        EXPERTS,
    ],
    weights=LLAMA_WEIGHTS,
)
