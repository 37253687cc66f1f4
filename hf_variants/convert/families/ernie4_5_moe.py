"""Ernie 4.5 MoE: Ernie 4.5 with softmax routing, a selection bias, and one shared network.

Natively the sum of the chosen weights is kept above `moe_norm_min`; ours divides by the sum itself.
"""

from hf_variants.convert.config_map import Always, Both, HeadDim, Key, Refuse, Same
from hf_variants.convert.expert_maps import DENSE_MLP, ROUTED_EXPERTS, Experts, SparseLayers
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS_WITHOUT_DROPOUT, EMBEDDINGS, FROZEN_PAD, rope
from hf_variants.convert.tensor_ops import DropLeadingOne
from hf_variants.convert.weight_rules import keep, rearrange

_LAYER = "model.layers.*."
_BIASES = ("attention_bias", "attention_out_bias", "mlp_bias", "lm_head_bias")


def _read_layers(native):
    first, last, step = native.moe_layer_start_index, native.moe_layer_end_index, native.moe_layer_interval
    layers = range(native.num_hidden_layers)
    return ["sparse" if (index + 1) % step == 0 and first <= index <= last else "dense" for index in layers]


def _write_layers(config):
    """Start, end and interval of evenly spaced sparse layers; other patterns are found when read again."""
    sparse = [index for index, kind in enumerate(config.mlp_layer_types) if kind == "sparse"]
    if not sparse:
        return {"moe_layer_start_index": config.num_hidden_layers}
    step = sparse[1] - sparse[0] if len(sparse) > 1 else 1
    return {"moe_layer_start_index": sparse[0], "moe_layer_end_index": sparse[-1], "moe_layer_interval": step}


FAMILY = Family(
    model_type="ernie4_5_moe",
    config=[
        *COMMON_KEYS_WITHOUT_DROPOUT,
        FROZEN_PAD,
        Same("num_key_value_heads", "max_position_embeddings", "intermediate_size", "hidden_act"),
        Key("norm_eps", "rms_norm_eps"),
        Always(rope_interleaved=True),
        HeadDim(),
        Both(lambda native: dict.fromkeys(_BIASES, native.use_bias), lambda config: {"use_bias": config.attention_bias}),
        rope(),
        Experts(
            {
                "num_experts": "moe_num_experts",
                "num_experts_per_tok": "moe_k",
                "moe_intermediate_size": "moe_intermediate_size",
                "num_shared_experts": "moe_num_shared_experts",
            },
            SparseLayers(_read_layers, _write_layers),
            {"router_balance": "bias", "norm_topk_prob": True, "router_weight_in_fp32": True},
        ),
        Refuse(
            "output_router_logits",
            lambda native: native.output_router_logits and native.router_aux_loss_coef != 0,
            "it adds a balance loss beside the selection bias, over all layers at once; set it to False",
        ),
        Refuse("moe_norm_min", lambda native: native.moe_norm_min > 1e-9, "ours has no such floor; set it to 1e-12"),
    ],
    weights=[
        *EMBEDDINGS,
        *keep("lm_head.bias", _LAYER + "self_attn.**", _LAYER + "*_layernorm.weight", _LAYER + "mlp.gate.weight"),
        *keep(_LAYER + "mlp.shared_experts.**"),
        *ROUTED_EXPERTS,
        rearrange(
            _LAYER + "mlp.gate.moe_statics.e_score_correction_bias",
            _LAYER + "mlp.gate.e_score_correction_bias",
            DropLeadingOne(),
        ),
        *DENSE_MLP,
    ],
)
