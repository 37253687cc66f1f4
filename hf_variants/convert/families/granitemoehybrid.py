"""Granite 4.0 whose layers all attend (micro, 1b, 350m): Granite with or without positions, and with or without experts."""

from hf_variants.convert.config_map import Both, HeadDim, Refuse, Same
from hf_variants.convert.families.granitemoe import WEIGHTS
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    MODERN_KEYS,
    NO_POSITIONS,
    all_biases,
    aux_loss,
    granite_multipliers,
    read_flat_rope,
    written_flat_rope,
)
from hf_variants.convert.tensor_ops import Split
from hf_variants.convert.weight_rules import only_if, rearrange, rename

_LAYER = "model.layers.*."


def _read_positions(native):
    return read_flat_rope(native) if native.position_embedding_type == "rope" else dict(NO_POSITIONS)


def _write_positions(config):
    turns = config.position_embedding_type == "rope"
    return {"position_embedding_type": "rope" if turns else None, "rope_parameters": written_flat_rope(config)}


def _read_experts(native):
    if not native.num_local_experts:
        return {"intermediate_size": native.shared_intermediate_size}
    return {
        "num_experts": native.num_local_experts,
        "num_experts_per_tok": native.num_experts_per_tok,
        "moe_intermediate_size": native.intermediate_size,
        "num_shared_experts": 1,
        "shared_expert_intermediate_size": native.shared_intermediate_size,
        **aux_loss().read(native),
    }


def _write_experts(config):
    if not config.has_experts:
        return {"num_local_experts": 0, "shared_intermediate_size": config.intermediate_size}
    return {
        "num_local_experts": config.num_experts,
        "num_experts_per_tok": config.num_experts_per_tok,
        "intermediate_size": config.moe_intermediate_size,
        "shared_intermediate_size": config.shared_expert_intermediate_size or 1,
        **aux_loss().write(config),
    }


def _write_layers(config):
    # the native config counts the heads of state-space layers, though it has none
    return {"layer_types": ["full_attention"] * config.num_hidden_layers, "mamba_n_heads": 2}


def _shared(ours, width):
    """The always-on network, whose gate and up are fused, under a name of ours."""
    return [
        rearrange(
            _LAYER + "shared_mlp.input_linear.weight",
            tuple(f"{_LAYER}{ours}.{part}_proj.weight" for part in ("gate", "up")),
            Split(lambda config: [width(config)] * 2),
        ),
        rename(_LAYER + "shared_mlp.output_linear.weight", f"{_LAYER}{ours}.down_proj.weight"),
    ]


FAMILY = Family(
    model_type="granitemoehybrid",
    config=[
        *MODERN_KEYS,
        Same("hidden_act"),
        granite_multipliers("logits_scaling"),
        HeadDim(),
        all_biases(),
        Both(_read_positions, _write_positions),
        Both(_read_experts, _write_experts),
        Both(writer=_write_layers),
        Refuse(
            "layer_types",
            lambda native: set(native.layer_types) != {"full_attention"},
            "no toggle means state-space layers; models of which every layer attends convert",
        ),
        Refuse(
            "shared_intermediate_size",
            lambda native: native.shared_intermediate_size == 0,
            "natively it builds a network of width zero; use granitemoe for experts alone",
        ),
    ],
    weights=[
        *WEIGHTS,
        *only_if(
            lambda config: config.has_experts,
            *_shared("mlp.shared_experts", lambda config: config.shared_expert_intermediate_size),
        ),
        *only_if(lambda config: not config.has_experts, *_shared("mlp", lambda config: config.intermediate_size)),
    ],
    needs={"layer_types": ["full_attention"] * 32},
)
