"""Cohere Compass (text): Command-R's parallel blocks with half-split RoPE, one per layer type, or none for a type.

Notable here: natively RoPE has positions in three directions, of which text uses one value for all three.
"""

from hf_variants.convert.config_map import Always, Both, HeadDim, Refuse, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    LLAMA_WEIGHTS,
    NO_POSITIONS,
    all_biases,
    layernorm_keys,
    live_rope,
    reciprocal,
    window_of_layer_types,
    written_rope,
)


def _read_rope(native):
    kinds = dict.fromkeys(native.layer_types)
    given = {kind: native.rope_parameters[kind] for kind in kinds}
    turned = {kind: live_rope(keys) for kind, keys in given.items() if keys is not None}
    if not turned:
        return dict(NO_POSITIONS)
    if len(turned) == len(kinds):
        return {"rope_parameters": turned}
    (flat,) = turned.values()
    return {"rope_parameters": flat, "no_rope_layers": [int(kind in turned) for kind in native.layer_types]}


def _write_rope(config):
    keys = {plan.layer_type: plan.rope_key for plan in config.layer_plan()}
    return {"rope_parameters": {kind: None if key is None else written_rope(config, key) for kind, key in keys.items()}}


def _read_scale(native):
    return {"logits_scaling": 1.0} if native.logit_scale is None else reciprocal("logits_scaling", "logit_scale").read(native)


FAMILY = Family(
    model_type="cohere_compass_text",
    config=[
        *layernorm_keys("layer_norm_eps"),
        Same("intermediate_size", "hidden_act"),
        Always(norm_placement="parallel", norm_bias=False, norm_weight_in_fp32=True),
        Refuse("logit_scale", lambda native: native.logit_scale == 0, "its logits are all zero; set it to None for no scale"),
        Both(_read_scale, reciprocal("logits_scaling", "logit_scale").write),
        HeadDim(),
        all_biases(),
        window_of_layer_types(),
        Refuse(
            "rope_parameters",
            lambda native: any(kind not in native.rope_parameters for kind in native.layer_types),
            "natively it fails without an entry, a dict or None, for each of layer_types",
        ),
        Both(_read_rope, _write_rope),
    ],
    weights=LLAMA_WEIGHTS,
    needs={"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
)
