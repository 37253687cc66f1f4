"""What a VariantsConfig means, apart from how it is written: the ground on which two configs are compared.

Notable here: fields without effect under the other choices are dropped, and what can be written in several ways
(attention scale, RoPE keys) is resolved per layer, so two configs are equal here exactly when they describe the same
model.
"""

from typing import ClassVar, get_origin

# None changes the model that a native checkpoint holds: how much is returned, what we store, how fast our bias moves,
# whether the row of the pad is trained.
_NOT_COMPARED = {"native", "output_router_logits", "router_bias_update_rate", "freeze_pad_embedding"}
_EXPERT_FIELDS = {
    *("num_experts_per_tok", "moe_intermediate_size", "num_shared_experts", "shared_expert_intermediate_size"),
    *(
        "shared_expert_gate",
        "router_scoring",
        "norm_topk_prob",
        "routed_scaling_factor",
        "n_group",
        "topk_group",
        "router_bias",
    ),
    *("router_weight_in_fp32", "expert_bias", "router_balance", "router_aux_loss_coef", "router_z_loss_coef"),
    *("apply_router_weight_on_input", "sparsemixer_jitter_eps", "router_selection", "expert_output_norm"),
}
_MLA_FIELDS = {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "latent_norm_eps"}
_TEMPERATURE_FIELDS = {"attn_temperature_layers", "attn_temperature_offset", "attn_scale", "floor_scale"}
_SCALE_FIELDS = ("query_pre_attn_scalar", "attention_multiplier", "scale_attn_by_inverse_layer_idx")


def meaning(config):
    """Every field of `config` that has an effect, as a dict of field names to comparable values."""
    values = {name: getattr(config, name) for name in _field_names(config)}
    for name in _without_effect(config):
        values.pop(name, None)
    for name in (*_SCALE_FIELDS, "partial_rotary_factor", "qk_norm_layers", "attn_temperature_layers"):
        values.pop(name, None)
    values["rope_parameters"] = _rope_of_layers(config)
    plans = config.layer_plan()
    values["attention scale"] = [plan.scaling for plan in plans]
    values["qk_norm"] = [plan.qk_norm for plan in plans]
    values["attn_temperature_tuning"] = [plan.tempered for plan in plans]
    return values


def differences(config, other):
    """Names of the fields in which two configs mean different models, each with both values as text."""
    if len(config.stacks) != len(other.stacks):
        return {"model_type": (config.model_type, other.model_type)}
    if len(config.stacks) > 1:
        return _differences_of_pairs(config, other)
    mine, theirs = meaning(config), meaning(other)
    found = {}
    for name in dict.fromkeys([*mine, *theirs]):
        if mine.get(name) != theirs.get(name):
            for field in _fields_behind(name, config, other):
                found[field] = (getattr(config, field), getattr(other, field))
    return found


def _differences_of_pairs(config, other):
    names = [name for name in config.own_fields() if name not in (*config.sub_configs, *_NOT_COMPARED)]
    found = {name: (getattr(config, name), getattr(other, name)) for name in names}
    found = {name: pair for name, pair in found.items() if pair[0] != pair[1]}
    for name in config.sub_configs:
        parts = differences(getattr(config, name), getattr(other, name))
        found |= {f"{name}.{field}": pair for field, pair in parts.items()}
    return found


def _field_names(config):
    for cls in type(config).__mro__:
        if "layer_plan" in vars(cls):
            return [name for name, annotation in cls.__annotations__.items() if get_origin(annotation) is not ClassVar]
    raise ValueError(f"{type(config).__name__} is not a VariantsConfig: it has no layer_plan()")


def _without_effect(config):
    dropped = set(_NOT_COMPARED)
    if not config.has_experts:
        dropped |= _EXPERT_FIELDS
    if "dense" not in config.mlp_layer_types:
        dropped.add("intermediate_size")
    dropped |= {"head_dim"} if config.attention_type == "mla" else _MLA_FIELDS
    if not config.attn_temperature_tuning:
        dropped |= _TEMPERATURE_FIELDS
    if config.embedding_multiplier == 1.0:
        dropped.add("embedding_multiplier_scope")
    if config.position_embedding_type in ("alibi", "relative", "none"):
        dropped.add("max_position_embeddings")
    return dropped


def _rope_of_layers(config):
    """The flat RoPE dict of each layer, None where nothing is rotated."""
    plans = config.layer_plan()
    return [None if plan.rope_key is None else _resolved_rope(config, plan.rope_key) for plan in plans]


def _resolved_rope(config, key):
    rope = {name: value for name, value in config.rope_of(key).items() if value is not None}
    rope["rotary_dim"] = config.rotary_dim_of(key)
    rope.pop("partial_rotary_factor", None)
    return fold_ntk(rope, rope["rotary_dim"])


def fold_ntk(rope, dim):
    """Static NTK is the default rule with a larger base, which is how families that lack the name can hold it."""
    if rope["rope_type"] != "ntk":
        return rope
    rest = {key: value for key, value in rope.items() if key != "factor"}
    return {**rest, "rope_type": "default", "rope_theta": rope["rope_theta"] * rope["factor"] ** (dim / (dim - 2))}


def _fields_behind(name, config, other):
    """The fields a user can change behind a compared name."""
    if name == "attention scale":
        return [field for field in _SCALE_FIELDS if getattr(config, field) != getattr(other, field)] or [_SCALE_FIELDS[0]]
    for whole, layers in (("qk_norm", "qk_norm_layers"), ("attn_temperature_tuning", "attn_temperature_layers")):
        if name == whole:
            changed = [field for field in (whole, layers) if getattr(config, field) != getattr(other, field)]
            return changed or [whole, "no_rope_layers"]
    if name == "rope_parameters":
        names = ("rope_parameters", "partial_rotary_factor")
        return [field for field in names if getattr(config, field) != getattr(other, field)] or ["rope_parameters"]
    return [name]
