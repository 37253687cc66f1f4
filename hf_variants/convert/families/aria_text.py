"""Aria (text): Llama attention with experts stored transposed, and shared experts, in every layer."""

from hf_variants.convert.config_map import Both, HeadDim, Refuse, Same
from hf_variants.convert.expert_maps import EVERY_LAYER, Experts
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, MODERN_KEYS, all_biases, rope
from hf_variants.convert.tensor_ops import Transpose
from hf_variants.convert.weight_rules import keep, rearrange, rename

_LAYER = "model.layers.*."


def _transposed(name):
    return rearrange(f"{_LAYER}mlp.experts.{name}", f"{_LAYER}mlp.experts.{name}", Transpose(1, 2))


FAMILY = Family(
    model_type="aria_text",
    config=[
        *MODERN_KEYS,
        Same("hidden_act", "mlp_bias"),
        Both(lambda native: {"intermediate_size": native.intermediate_size}),
        HeadDim(declared=True),
        all_biases(),
        rope(),
        Experts(
            {
                "num_experts": "moe_num_experts",
                "num_experts_per_tok": "moe_topk",
                "num_shared_experts": "moe_num_shared_experts",
                "moe_intermediate_size": "intermediate_size",
            },
            EVERY_LAYER,
            {"norm_topk_prob": True},
        ),
        Refuse(
            "hidden_act",
            lambda native: native.hidden_act != "silu",
            "natively it acts in the shared experts alone, the routed ones keep silu; set it to 'silu'",
        ),
    ],
    weights=[
        *EMBEDDINGS,
        *keep(_LAYER + "self_attn.**", _LAYER + "*_layernorm.weight", _LAYER + "mlp.shared_experts.**"),
        rename(_LAYER + "mlp.router.weight", _LAYER + "mlp.gate.weight"),
        _transposed("gate_up_proj"),
        _transposed("down_proj"),
    ],
)
