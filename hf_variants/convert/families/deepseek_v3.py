"""DeepSeek-V3: latent attention, dense first layers, sigmoid routing in groups with a bias that balances the load.

The latent norms use 1e-6 whatever `rms_norm_eps` says. `head_dim` is forced natively to the rotary width. The next-
token prediction layers of published checkpoints are not built natively either.
"""

from hf_variants.convert.config_map import Always, Both, Key, Refuse, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, all_biases, rope

_SAME = (
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "routed_scaling_factor",
    "n_group",
    "topk_group",
)

_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _read_experts(native):
    dense = min(native.first_k_dense_replace, native.num_hidden_layers)
    sparse = native.num_hidden_layers - dense
    if not sparse:
        return {}
    return {
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * sparse,
        "num_experts": native.n_routed_experts,
        "num_shared_experts": native.n_shared_experts,
        "router_scoring": "sigmoid",
        "router_balance": "bias",
        **{key: getattr(native, key) for key in _SAME},
    }


def _write_experts(config):
    if not config.has_experts:
        return {"first_k_dense_replace": config.num_hidden_layers}
    return {
        "first_k_dense_replace": config.mlp_layer_types.index("sparse"),
        "n_routed_experts": config.num_experts,
        "n_shared_experts": config.num_shared_experts,
        **{key: getattr(config, key) for key in _SAME},
    }


def _read_latent(native):
    return {name: getattr(native, name) for name in _LATENT}


def _write_latent(config):
    return {name: getattr(config, name) for name in _LATENT} if config.attention_type == "mla" else {}


FAMILY = Family(
    model_type="deepseek_v3",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Key("rope_interleaved", "rope_interleave"),
        Both(lambda native: {"head_dim": native.qk_rope_head_dim}),
        Always(attention_type="mla", latent_norm_eps=1e-6),
        Both(_read_latent, _write_latent),
        all_biases(),
        rope(),
        Both(_read_experts, _write_experts),
        Refuse(
            "n_group",
            lambda native: native.n_group is None or native.topk_group is None,
            "natively it fails when tokens are routed; use n_group=1 and topk_group=1 for no groups",
        ),
        Refuse(
            "n_shared_experts",
            lambda native: not native.n_shared_experts and native.first_k_dense_replace < native.num_hidden_layers,
            "natively it builds shared experts of width zero or fails; use at least 1",
        ),
    ],
    weights=LLAMA_WEIGHTS,
)
