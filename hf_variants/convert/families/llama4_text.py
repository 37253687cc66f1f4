"""Llama 4 (text): chunked layers with RoPE and QK-norm, full ones with neither, experts whose input the router weighs.

The temperature of the queries follows the position within the row; natively it counts pads too.
"""

from hf_variants.convert.config_map import Both, HeadDim, Key, Refuse, Same
from hf_variants.convert.expert_maps import Experts, SparseLayers
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, MODERN_KEYS, NO_POSITIONS, all_biases, rope
from hf_variants.convert.tensor_ops import Transpose
from hf_variants.convert.weight_rules import keep, rearrange, rename

_LAYER = "model.layers.*."
_THEIRS, _OURS = _LAYER + "feed_forward.", _LAYER + "mlp."


def _flags(native):
    return [int(bool(flag)) for flag in native.no_rope_layers[: native.num_hidden_layers]]


def _read_positions(native):
    flags = _flags(native)
    found = {"no_rope_layers": flags, "rope_interleaved": True} if any(flags) else dict(NO_POSITIONS)
    if native.use_qk_norm and any(flags):
        found |= {"qk_norm": "l2", "qk_norm_after_rope": True, "qk_norm_layers": "rope"}
    if native.attn_temperature_tuning and native.attn_scale and not all(flags):
        found |= {"attn_temperature_tuning": True, "attn_temperature_layers": "nope", "attn_temperature_offset": 1}
        found |= {"attn_scale": native.attn_scale, "floor_scale": native.floor_scale}
    return found


def _write_positions(config):
    written = {
        "no_rope_layers": [int(plan.rope_key is not None) for plan in config.layer_plan()],
        "use_qk_norm": config.qk_norm != "none",
        "attn_temperature_tuning": config.attn_temperature_tuning,
    }
    if config.attn_temperature_tuning:
        written |= {"attn_scale": config.attn_scale, "floor_scale": config.floor_scale}
    return written


def _read_chunks(native):
    chunked = "chunked_attention" in native.layer_types
    return {"layer_types": list(native.layer_types), "attention_chunk_size": native.attention_chunk_size if chunked else None}


def _write_chunks(config):
    size = {} if config.attention_chunk_size is None else {"attention_chunk_size": config.attention_chunk_size}
    return {"layer_types": list(config.layer_types), **size}


_LISTED = SparseLayers(
    lambda native: ["sparse" if index in native.moe_layers else "dense" for index in range(native.num_hidden_layers)],
    lambda config: {"moe_layers": [index for index, kind in enumerate(config.mlp_layer_types) if kind == "sparse"]},
)


def _transposed(name):
    return rearrange(f"{_THEIRS}experts.{name}", f"{_OURS}experts.{name}", Transpose(1, 2))


FAMILY = Family(
    model_type="llama4_text",
    config=[
        *MODERN_KEYS,
        Same("hidden_act"),
        Key("intermediate_size", "intermediate_size_mlp"),
        HeadDim(declared=True),
        all_biases(),
        rope(),
        Both(_read_positions, _write_positions),
        Both(_read_chunks, _write_chunks),
        Refuse(
            "attention_chunk_size",
            lambda native: native.attention_chunk_size is None,
            "natively it fails, whether or not a layer is chunked; set it to max_position_embeddings for no chunks",
        ),
        Refuse(
            "layer_types",
            lambda native: "sliding_attention" in native.layer_types,
            "natively there is no mask for it; choose from ['full_attention', 'chunked_attention']",
        ),
        Experts(
            {
                "num_experts": "num_local_experts",
                "num_experts_per_tok": "num_experts_per_tok",
                "moe_intermediate_size": "intermediate_size",
                "shared_expert_intermediate_size": "intermediate_size",
            },
            _LISTED,
            {
                **{"num_shared_experts": 1, "router_scoring": "sigmoid", "norm_topk_prob": False},
                "apply_router_weight_on_input": True,
            },
        ),
    ],
    weights=[
        *EMBEDDINGS,
        *keep(_LAYER + "self_attn.**", _LAYER + "*_layernorm.weight"),
        rename(_THEIRS + "router.weight", _OURS + "gate.weight"),
        rename(_THEIRS + "shared_expert.**", _OURS + "shared_experts.**"),
        _transposed("gate_up_proj"),
        _transposed("down_proj"),
        *(rename(f"{_THEIRS}{part}_proj.weight", f"{_OURS}{part}_proj.weight") for part in ("gate", "up", "down")),
    ],
)
