"""Granite with windows: attention sinks on every layer, a window on chosen layers, and one RoPE base per layer."""

from hf_variants.convert.config_map import Always, Both, HeadDim, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    LLAMA_WEIGHTS,
    MODERN_KEYS,
    NO_POSITIONS,
    all_biases,
    granite_multipliers,
    live_rope,
    window_of_layer_types,
    written_rope,
)


def _read_thetas(native):
    """A base of 0 is no rotation; ours has one RoPE, or one per layer type."""
    thetas, rope = list(native.layer_rope_theta), live_rope(native.rope_parameters)
    turned = sorted({theta for theta in thetas if theta})
    if not turned:
        return dict(NO_POSITIONS)
    flags = {"no_rope_layers": [int(bool(theta)) for theta in thetas]}
    if len(turned) == 1:
        return {**flags, "rope_parameters": {**rope, "rope_theta": turned[0]}}
    found = {}
    for kind, theta in zip(native.layer_types, thetas, strict=True):
        if theta and found.setdefault(kind, theta) != theta:
            raise ValueError(
                f"{native.model_type} with layer_rope_theta={thetas} cannot be converted: layers of one type ({kind}) have "
                "several bases; ours has one RoPE per layer type"
            )
    return {**flags, "rope_parameters": {kind: {**rope, "rope_theta": theta} for kind, theta in found.items()}}


def _write_thetas(config):
    keys = [plan.rope_key for plan in config.layer_plan()]
    thetas = [0 if key is None else config.rope_of(key)["rope_theta"] for key in keys]
    key = next((key for key in keys if key is not None), None)
    rope = {"rope_type": "default", "rope_theta": 10000.0} if key is None else written_rope(config, key)
    return {"layer_rope_theta": thetas, "rope_parameters": rope}


KEYS = [
    *MODERN_KEYS,
    Same("hidden_act"),
    granite_multipliers("logits_scaling"),
    Always(attention_sinks=True),
    HeadDim(),
    all_biases(),
    window_of_layer_types(),
    Both(_read_thetas, _write_thetas),
]

FAMILY = Family(
    model_type="granite_swa",
    config=[*KEYS, Same("intermediate_size", "mlp_bias")],
    weights=LLAMA_WEIGHTS,
)
