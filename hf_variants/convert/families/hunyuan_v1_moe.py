"""Hunyuan MoE: Hunyuan attention, experts and one shared expert of `intermediate_size` in every layer."""

from hf_variants.convert.config_map import Both, Refuse
from hf_variants.convert.expert_maps import ROUTED_EXPERTS, shared_experts
from hf_variants.convert.families.hunyuan_v1_dense import ATTENTION, KEYS
from hf_variants.convert.registry import Family
from hf_variants.convert.weight_rules import rename

_LAYER = "model.layers.*."


def _top_k(native):
    return native.moe_topk if isinstance(native.moe_topk, int) else native.moe_topk[0]


def _read_experts(native):
    width = native.intermediate_size
    return {
        "num_experts": native.num_experts,
        "num_experts_per_tok": _top_k(native),
        "intermediate_size": width,
        "moe_intermediate_size": width,
        "num_shared_experts": 1,
        "router_weight_in_fp32": True,
    }


def _write_experts(config):
    if not config.has_experts:
        return {}
    return {
        "num_experts": config.num_experts,
        "moe_topk": config.num_experts_per_tok,
        "intermediate_size": config.moe_intermediate_size,
    }


FAMILY = Family(
    model_type="hunyuan_v1_moe",
    config=[
        *KEYS,
        Refuse(
            "moe_topk",
            lambda native: not isinstance(native.moe_topk, int) and len(set(native.moe_topk)) > 1,
            "ours chooses the same number of experts in every layer",
        ),
        Both(_read_experts, _write_experts),
    ],
    weights=[
        *ATTENTION,
        rename(_LAYER + "mlp.gate.wg.weight", _LAYER + "mlp.gate.weight"),
        *ROUTED_EXPERTS,
        *shared_experts("shared_mlp"),
    ],
)
