"""AFMoE (Trinity): a gate on the attention output, RoPE on sliding layers only, sandwich norms, DeepSeek-V3's routing."""

from hf_variants.convert.config_map import Always, Both, HeadDim, Refuse, Same
from hf_variants.convert.expert_maps import DENSE_MLP, ROUTED_EXPERTS, SIGMOID_ROUTER, Experts, first_layers_dense, same_names
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    EMBEDDINGS,
    MODERN_KEYS,
    all_biases,
    rope,
    rope_on_sliding_layers,
    window_of_layer_types,
)
from hf_variants.convert.weight_rules import keep, rename

_LAYER = "model.layers.*."


def _read_embedding(native):
    return {"embedding_multiplier": native.hidden_size**0.5} if native.mup_enabled else {}


_KEYS = same_names("num_experts", "num_shared_experts", "num_experts_per_tok", "moe_intermediate_size")

FAMILY = Family(
    model_type="afmoe",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Always(norm_placement="sandwich", norm_weight_in_fp32=True, qk_norm="head", attn_output_gate="channel"),
        HeadDim(declared=True),
        all_biases(),
        rope(),
        window_of_layer_types(),
        rope_on_sliding_layers(),
        Both(_read_embedding, lambda config: {"mup_enabled": config.embedding_multiplier != 1}),
        Experts(
            {**_KEYS, "routed_scaling_factor": "route_scale"},
            first_layers_dense("num_dense_layers"),
            {**SIGMOID_ROUTER, "norm_topk_prob": True},
        ),
        Refuse(
            "num_shared_experts",
            lambda native: not native.num_shared_experts and native.num_dense_layers < native.num_hidden_layers,
            "natively it builds shared experts of width zero; use at least 1",
        ),
    ],
    weights=[
        *EMBEDDINGS,
        *keep(_LAYER + "self_attn.**", _LAYER + "input_layernorm.weight", _LAYER + "post_attention_layernorm.weight"),
        rename(_LAYER + "pre_mlp_layernorm.weight", _LAYER + "pre_feedforward_layernorm.weight"),
        rename(_LAYER + "post_mlp_layernorm.weight", _LAYER + "post_feedforward_layernorm.weight"),
        *ROUTED_EXPERTS,
        rename(_LAYER + "mlp.router.gate.weight", _LAYER + "mlp.gate.weight"),
        rename(_LAYER + "mlp.expert_bias", _LAYER + "mlp.gate.e_score_correction_bias"),
        *keep(_LAYER + "mlp.shared_experts.**"),
        *DENSE_MLP,
    ],
)
