"""Qwen2-MoE: experts in chosen layers beside one shared expert behind a sigmoid gate."""

from hf_variants.convert.config_map import HeadDim, Same
from hf_variants.convert.expert_maps import DENSE_MLP, ROUTED_EXPERTS, STEPS, Experts, same_names, shared_experts
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, MODERN_KEYS, qkv_biases, rope, window_of_layer_types
from hf_variants.convert.weight_rules import keep

_LAYER = "model.layers.*."
_KEYS = same_names("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")

FAMILY = Family(
    model_type="qwen2_moe",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        HeadDim(),
        qkv_biases("qkv_bias"),
        window_of_layer_types("use_sliding_window"),
        rope(),
        Experts(
            {**_KEYS, **same_names("shared_expert_intermediate_size")},
            STEPS,
            {"num_shared_experts": 1, "shared_expert_gate": True},
            aux_loss=True,
        ),
    ],
    weights=[
        *EMBEDDINGS,
        *keep(_LAYER + "self_attn.**", _LAYER + "*_layernorm.weight"),
        *keep(_LAYER + "mlp.gate.weight", _LAYER + "mlp.shared_expert_gate.weight"),
        *ROUTED_EXPERTS,
        *shared_experts("shared_expert"),
        *DENSE_MLP,
    ],
)
