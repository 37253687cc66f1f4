"""Kolibri 1: EXAONE 4 attention under sandwich norms, experts in every layer, chosen by their logits and a bias."""

from hf_variants.convert.config_map import Always, HeadDim, Refuse, Same
from hf_variants.convert.expert_maps import EVERY_LAYER, SIGMOID_ROUTER, Experts, same_names
from hf_variants.convert.families.glm4 import SANDWICH_NORMS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, MODERN_KEYS, rope, rope_on_sliding_layers, window_of_layer_types
from hf_variants.convert.weight_rules import keep

_KEYS = same_names("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")

FAMILY = Family(
    model_type="kolibri1",
    config=[
        *MODERN_KEYS,
        Same("hidden_act"),
        Always(qk_norm="head", norm_placement="sandwich"),
        HeadDim(declared=True),
        Refuse(
            "sliding_window",
            lambda native: native.sliding_window is None,
            "natively its masks fail without one, even where no layer slides; set it to a number of tokens",
        ),
        window_of_layer_types(),
        rope(),
        rope_on_sliding_layers(),
        Experts(
            {**_KEYS, **same_names("shared_expert_intermediate_size")},
            EVERY_LAYER,
            {**SIGMOID_ROUTER, "num_shared_experts": 1, "router_selection": "logits"},
        ),
    ],
    weights=[
        *EMBEDDINGS,
        *keep("model.layers.*.self_attn.**", "model.layers.*.mlp.**"),
        *SANDWICH_NORMS,
    ],
)
