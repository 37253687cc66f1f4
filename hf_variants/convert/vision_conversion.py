"""Native vision-language models <-> `VariantsForImageTextToText`, with equal logits and bitwise equal weights on the way back.

Notable here: the language model goes through the rules of its own family, the tower is copied under its own names, and only
the bridge is the vision family's; whatever a written config does not mean is found by reading it again.
"""

import copy

from transformers import CONFIG_MAPPING

from hf_variants.convert.config_conversion import as_plain_dict, build_native_config, config_from_native, config_to_native
from hf_variants.convert.registry import find_family
from hf_variants.convert.vision_families import VISION_FAMILIES, VISION_LEFT_OUT
from hf_variants.convert.weight_rules import apply_rules

OURS = "variants_vision"
_PARTS = ("text_config", "vision_config")
_OUR_TEXT, _OUR_TOWER, _OUR_BRIDGE = (
    "model.language_model.",
    "model.vision_tower.vision_model.",
    "model.multi_modal_projector.",
)


def is_vision_type(model_type):
    """Whether a model type is that of a vision-language family that converts."""
    return model_type in VISION_FAMILIES


def vision_family(model_type):
    """The `VisionFamily` of a model type. Raises ValueError with the reason, or the known ones."""
    if model_type in VISION_LEFT_OUT:
        raise ValueError(f"model_type={model_type!r} cannot be converted: no toggle means {VISION_LEFT_OUT[model_type]}")
    if model_type not in VISION_FAMILIES:
        raise ValueError(
            f"model_type={model_type!r} is no vision-language family that converts; known: {list(VISION_FAMILIES)}"
        )
    return VISION_FAMILIES[model_type]


def vision_config_from_native(native):
    """The `VariantsVisionConfig` that means what a native config means; what no key means is kept in `native`.

    Raises:
        ValueError: unknown family, or a native setting that ours cannot mean, with the reason.
    """
    found = vision_family(native.model_type)
    config = _read(found, native)
    written = as_plain_dict(_build(found, config, {}))
    given = {key: value for key, value in as_plain_dict(native).items() if key not in _PARTS}
    residue = {key: value for key, value in given.items() if key not in written or written[key] != value}
    text, said = as_plain_dict(native.text_config), written["text_config"]
    config.native = {
        **{"model_type": found.model_type, "config": residue, "vision_config": as_plain_dict(native.vision_config)},
        # the whole decides what is tied and what is done to logits; the part may say otherwise
        "text_config": {key: value for key, value in text.items() if key not in said or said[key] != value},
    }
    config.dtype = getattr(native, "dtype", None)
    return config


def vision_config_to_native(config, family=None):
    """The native config that means what a `VariantsVisionConfig` means.

    Args:
        family: model type to write; None takes the one that `config.native` names, else the first that can express it.

    Raises:
        ValueError: naming the keys that the family cannot express.
    """
    name = family or (config.native or {}).get("model_type")
    if name is not None:
        return _written(vision_family(name), config)
    reasons = []
    for found in VISION_FAMILIES.values():
        try:
            return _written(found, config)
        except ValueError as error:
            reasons.append(f"{found.model_type}: {error}")
    raise ValueError(f"no native family expresses this config; {'; '.join(reasons)}")


def vision_state_into(found, state, config):
    """Our state dict of a native one, in memory names; a tied head left out of both."""
    text = find_family(config.text_config.native["model_type"])
    parts = _split(state, {found.text: text.prefix, found.tower: _OUR_TOWER})
    elsewhere = (found.text, found.tower, "lm_head.")
    between = {name: tensor for name, tensor in state.items() if not name.startswith(elsewhere)}
    ours = {**apply_rules(found.bridge, between, config), **parts[found.tower]}
    spoken = {**parts[found.text], **{name: t for name, t in state.items() if name.startswith("lm_head.")}}
    for name, tensor in apply_rules(text.rules("causal_lm"), spoken, config.text_config).items():
        ours[_OUR_TEXT + name.removeprefix("model.") if name.startswith("model.") else name] = tensor
    return ours


def vision_state_back(found, state, config, native_config):
    """The native state dict of ours, in memory names; a tied head left out of both."""
    text = find_family(native_config.text_config.model_type)
    parts = _split(state, {_OUR_TEXT: "model.", _OUR_TOWER: found.tower})
    between = {name: tensor for name, tensor in state.items() if name.startswith(_OUR_BRIDGE)}
    native = {**apply_rules(found.bridge, between, config, back=True), **parts[_OUR_TOWER]}
    spoken = {**parts[_OUR_TEXT], **{name: t for name, t in state.items() if name.startswith("lm_head.")}}
    for name, tensor in apply_rules(text.rules("causal_lm"), spoken, config.text_config, back=True).items():
        native[found.text + name.removeprefix(text.prefix) if name.startswith(text.prefix) else name] = tensor
    return native


def _split(state, prefixes):
    """{prefix: tensors under it, with that prefix replaced}."""
    return {
        old: {new + name.removeprefix(old): tensor for name, tensor in state.items() if name.startswith(old)}
        for old, new in prefixes.items()
    }


def _read(found, native):
    from hf_variants.modeling.configuration_variants_vision import VariantsVisionConfig

    text = copy.deepcopy(native.text_config)
    for key, alone in found.text_keys.items():
        setattr(text, key, alone)
    text = config_from_native(text)
    for key, off in found.unread_terms().items():
        setattr(text, key, off)
    text.tie_word_embeddings = bool(native.tie_word_embeddings)
    keys = found.read(native)
    return VariantsVisionConfig(text_config=text, vision_config=_our_tower(found, native.vision_config), **keys)


def _our_tower(found, vision):
    if found.tower_type is None:
        return copy.deepcopy(vision)
    from hf_variants.modeling.vision_tower import tower_config

    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_channels", "image_size")
    names += ("patch_size", "hidden_act", "layer_norm_eps", "attention_dropout")
    keys = {name: getattr(vision, name) for name in names}
    return tower_config({"model_type": found.tower_type, **keys, "vision_use_head": False})


def _kept(found, config, part):
    """What `config.native` keeps of a part for this family."""
    native = config.native or {}
    return native.get(part, {}) if native.get("model_type") == found.model_type else {}


def _native_tower(found, config):
    if found.tower_type is None:
        return as_plain_dict(config.vision_config)
    kept = _kept(found, config, "vision_config")
    own = as_plain_dict(config.vision_config)
    shape = {key: own[key] for key in own if key not in ("model_type", "vision_use_head")}
    return {**shape, **kept} if kept else shape


def _build(found, config, kept):
    text = config_to_native(config.text_config).to_dict()
    text = {key: value for key, value in text.items() if key not in found.text_keys} | _kept(found, config, "text_config")
    keys = {**found.write(config), **kept, "tie_word_embeddings": config.tie_word_embeddings}
    built = build_native_config(found.model_type, {**keys, "text_config": text, "vision_config": _native_tower(found, config)})
    # by class: a class that takes any keys takes another's model_type too
    if type(built.text_config) is not CONFIG_MAPPING[text["model_type"]]:
        raise ValueError(
            f"{found.model_type} cannot express a language model of type {text['model_type']!r}; natively it reads "
            f"{type(built.text_config).__name__}"
        )
    return built


def _written(found, config):
    native = _build(found, config, _kept(found, config, "config"))
    again = _read(found, native)
    skipped = (*_PARTS, "native")
    lost = {
        name: (getattr(config, name), getattr(again, name))
        for name in config.own_fields()
        if name not in skipped and getattr(config, name) != getattr(again, name)
    }
    text, unread = config.text_config, found.unread_terms()
    lost |= {f"text_config.{key}": (getattr(text, key), off) for key, off in unread.items() if getattr(text, key) != off}
    own, read = (as_plain_dict(part.vision_config) for part in (config, again))
    lost |= {f"vision_config.{key}": (own[key], read.get(key)) for key in own if own[key] != read.get(key)}
    if lost:
        told = "; ".join(f"{name}={ours!r} (it would be {theirs!r})" for name, (ours, theirs) in lost.items())
        raise ValueError(f"{found.model_type} cannot express {told}")
    native.dtype = getattr(config, "dtype", None)
    return native
