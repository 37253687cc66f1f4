"""What each family uses of the toggles: the rows of the table of families.

Notable here: nothing is written by hand. A family's toggles are what its native default config sets beside the shape,
and what it refuses is read off its rules.
"""

from dataclasses import dataclass, fields

from hf_variants.convert.config_conversion import config_from_native
from hf_variants.convert.config_map import Refuse, TrainingOnly
from hf_variants.convert.quiet import quiet
from hf_variants.convert.registry import file_of, find_family

_SHAPE = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "max_position_embeddings", "initializer_range", "norm_eps", "pad_token_id"),
)
# Fields that others follow where those are left unset.
_FOLLOWED = ("is_causal", "attention_bias", "norm_type", "norm_affine", "norm_placement", "num_experts")
_UNSEEN = {
    *(*_SHAPE, "bos_token_id", "eos_token_id", "use_cache", "native", "tie_word_embeddings", "freeze_pad_embedding"),
    *("num_experts_per_tok", "moe_intermediate_size", "routed_scaling_factor", "shared_expert_intermediate_size"),
    *("cross_attention_hidden_size", "relative_attention_num_buckets", "relative_attention_max_distance"),
    *("attention_dropout", "hidden_dropout", "embedding_dropout", "output_router_logits", "dtype", "mlp_layer_types"),
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "latent_norm_eps"),
}


@dataclass(frozen=True)
class FamilyRow:
    """One family.

    Attributes:
        model_type: transformers' name of it.
        meaning: the first sentence of its file.
        heads: what converts, by the names of `from_native(head=...)`.
        toggles: fields of VariantsConfig that its native default config sets, to their values.
        refused: native keys of which some value cannot be converted, to the reasons.
        untrained: native keys that act in native training alone, to what they do there.
    """

    model_type: str
    meaning: str
    heads: list
    toggles: dict
    refused: dict
    untrained: dict


def family_row(model_type):
    """The `FamilyRow` of a known family."""
    from importlib import import_module

    from transformers import CONFIG_MAPPING

    found = find_family(model_type)
    with quiet():
        config = config_from_native(CONFIG_MAPPING[model_type](**found.needs))
    text = import_module(f"hf_variants.convert.families.{file_of(model_type)}").__doc__
    first = " ".join(text.split("\n\n")[0].split())
    refused = {rule.key: rule.reason for rule in found.every_rule() if isinstance(rule, Refuse)}
    untrained = {rule.key: rule.what for rule in found.every_rule() if isinstance(rule, TrainingOnly)}
    return FamilyRow(model_type, first, list(found.heads), _toggles(config), refused, untrained)


def toggle_word(name, value):
    """A toggle in short: words and switches with their value, numbers and lists by name."""
    if name == "rope_parameters":
        return "rope_parameters per layer type" if "rope_type" not in value else f"rope_type={value['rope_type']}"
    return f"{name}={value}" if isinstance(value, str) or value is False else name


def family_facts(model_type):
    """A family as a dict of JSON types: `converts`, and what a `FamilyRow` holds, or the `reason` why it does not.

    Raises:
        ValueError: for a type that is neither, naming the nearest.
    """
    from hf_variants.convert.left_out import LEFT_OUT

    if model_type in LEFT_OUT:
        return {"model_type": model_type, "converts": False, "reason": LEFT_OUT[model_type]}
    row = family_row(model_type)
    words = [toggle_word(*item) for item in row.toggles.items()]
    return {"model_type": model_type, "converts": True, **vars(row), "toggle_words": words}


def all_families():
    """{"families": [`family_facts`, ...], "left_out": {model type: reason}, "unwritten": [model type]}, for the command line
    and the docs.
    """
    from hf_variants.convert.left_out import LEFT_OUT, UNWRITTEN
    from hf_variants.convert.registry import family_names

    with quiet():
        found = [family_facts(name) for name in family_names()]
    return {"families": found, "left_out": dict(LEFT_OUT), "unwritten": list(UNWRITTEN)}


def _toggles(config):
    """Fields that differ from a default config of the same shape."""
    from hf_variants.modeling.configuration_variants import VariantsConfig

    if len(config.stacks) > 1:
        return _toggles_of_pair(config)
    base = VariantsConfig(**{name: getattr(config, name) for name in (*_SHAPE, *_FOLLOWED)})
    own = [field for field in fields(VariantsConfig) if field.name in VariantsConfig.__annotations__]
    unset = {field.name: field.default if field.name in _FOLLOWED else getattr(base, field.name) for field in own}
    changed = {name: getattr(config, name) for name in unset if getattr(config, name) != unset[name]}
    rope = changed.get("rope_parameters")
    if rope is None or not config.rope_is_nested and {**rope, "rope_theta": None} == _plain_rope(rope):
        changed.pop("rope_parameters", None)
    return {name: value for name, value in changed.items() if name not in _UNSEEN}


def _toggles_of_pair(config):
    """Those of both stacks once, those of one behind its name, and those that join them."""
    encoder, decoder = (_toggles(stack) for stack in config.stacks)
    found = {name: value for name, value in decoder.items() if encoder.get(name) == value}
    for name, own in (("encoder", encoder), ("decoder", decoder)):
        found |= {f"{name}.{key}": value for key, value in own.items() if key not in found}
    unset = {field.name: field.default for field in fields(config)}
    names = ("share_embeddings", "decoder_start", "final_logits_bias")
    return found | {name: getattr(config, name) for name in names if getattr(config, name) != unset[name]}


def _plain_rope(rope):
    """A default rule of any base, whose share of rotated dimensions is shown as a field of its own."""
    share = {"partial_rotary_factor": rope["partial_rotary_factor"]} if "partial_rotary_factor" in rope else {}
    return {"rope_type": "default", "rope_theta": None, **share}
