"""The config behind whatever names one: a preset, a .json, a folder, a Hub id, or a config object, ours or a native family's.

Notable here: only `config.json` is read or fetched, never weights; a native config is converted, so that everything that
counts from a config counts native models too. Families, and torch with them, are imported once there is a native config.
"""

from pathlib import Path

from hf_variants.convert.checkpoint_config import parsed
from hf_variants.convert.quiet import quiet
from hf_variants.presets import list_presets, preset_keys

_PAIR = "variants_seq2seq"
_IMAGES = "variants_vision"


def read_config(source, **overrides):
    """The `VariantsConfig` that `source` names, or the `VariantsSeq2SeqConfig` of an encoder-decoder of the family.

    Args:
        source: a config of the family, native config, name of a preset, path of a .json, folder with a config.json, or Hub id.
        overrides: keys to replace; "decoder.num_key_value_heads" or "rope_parameters.rope_theta" is a key of a part.

    Raises:
        ValueError: where no config is found, two may be meant or it is malformed, for a native config that cannot be converted
            (naming the nearest families), and for overrides that the config refuses.
    """
    if hasattr(source, "layer_plan"):
        return _ours(_replaced(_own_keys(source), overrides)) if overrides else source
    if getattr(source, "model_type", None) == _PAIR:
        return _pair(source.to_dict(), overrides) if overrides else source
    if hasattr(source, "to_diff_dict"):
        return _converted(source, overrides)
    name = str(source)
    keys = preset_keys(name) if _is_preset(name) else _read_keys(name)
    model_type = keys.get("model_type", "variants")
    if not isinstance(model_type, str):
        raise ValueError(f"{name}: model_type={model_type!r} must be one word")
    if model_type == "variants":
        return _ours(_replaced(keys, overrides))
    if model_type == _PAIR:
        return _pair(keys, overrides)
    from hf_variants.convert.config_conversion import build_native_config

    _refuse_unknown_type(model_type, keys, name)
    _refuse_sizes_below_one(model_type, keys, name)
    with quiet():
        native = build_native_config(model_type, keys)
        _refuse_missing_sizes(native, {**keys, **overrides}, name)
        return _converted(native, overrides)


def quantization_of(source):
    """The method ("awq", "bitsandbytes") by which the checkpoint that `source` names is quantized, or None."""
    name = str(source)
    if hasattr(source, "model_type") or _is_preset(name):
        return None
    said = _read_keys(name).get("quantization_config")
    return str(said.get("quant_method", "unknown")) if isinstance(said, dict) else None


def read_any_config(source, **overrides):
    """As `read_config`, and the `VariantsVisionConfig` of a model that reads images; raises the same.

    Overrides of a part, {"text_config": {...}}, replace single keys of it.
    """
    if getattr(source, "model_type", None) == _IMAGES:
        return _seeing(source.to_dict(), overrides) if overrides else source
    if isinstance(source, (str, Path)) and not _is_preset(str(source)):
        keys = _read_keys(str(source))
        if keys.get("model_type") == _IMAGES:
            return _seeing(keys, overrides)
    return read_config(source, **overrides)


def expressible_families(config):
    """Model types of the native families that mean exactly what a `VariantsConfig` means, best known first.

    `convert.to_native` writes a model of that config as any of them.
    """
    from hf_variants.convert.config_conversion import can_express
    from hf_variants.convert.registry import known_families

    with quiet():
        return [found.model_type for found in known_families() if can_express(found.model_type, config)]


def _ours(keys):
    # imported where it is needed: a misspelt name is answered without
    from hf_variants.modeling.configuration_variants import VariantsConfig

    return VariantsConfig(**keys)


def _pair(keys, overrides):
    """A `VariantsSeq2SeqConfig`; overrides of a stack, {"decoder": {...}}, replace single keys of it."""
    from hf_variants.modeling.configuration_variants_seq2seq import VariantsSeq2SeqConfig

    return VariantsSeq2SeqConfig(**_with_parts(keys, overrides))


def _seeing(keys, overrides):
    """A `VariantsVisionConfig`; overrides as of `_pair`."""
    from hf_variants.modeling.configuration_variants_vision import VariantsVisionConfig

    return VariantsVisionConfig(**_with_parts(keys, overrides))


def _with_parts(keys, overrides):
    merged = {}
    for name, value in overrides.items():
        both = isinstance(value, dict) and isinstance(keys.get(name), dict)
        merged |= {f"{name}.{key}": item for key, item in value.items()} if both else {name: value}
    return {name: value for name, value in _replaced(keys, merged).items() if name != "model_type"}


def _replaced(keys, overrides):
    """`keys` with `overrides`; the dots of a name reach into dicts, whose other keys stay."""
    keys = dict(keys)
    for name, value in overrides.items():
        first, _, rest = name.partition(".")
        if not rest:
            keys[first] = value
            continue
        part = {} if keys.get(first) is None else keys[first]
        if not isinstance(part, dict):
            raise ValueError(f"{name}={value!r}: {first} is {part!r}, which has no keys to replace")
        keys[first] = _replaced(part, {rest: value})
    return keys


def _own_keys(config):
    return {name: getattr(config, name) for name in config.own_fields()}


def _converted(native, overrides):
    from hf_variants.convert.config_conversion import config_from_native
    from hf_variants.convert.registry import find_family

    if not overrides:
        return config_from_native(native)
    found = find_family(native.model_type)
    if found.two_stacks:
        return _pair(found.read(native), overrides)
    return _ours(_replaced(found.read(native), overrides))


def _is_preset(name):
    """Whether a preset has this name. Raises ValueError where a file or folder here has it too, for which of them is meant?"""
    if name not in list_presets():
        return False
    if Path(name).exists():
        raise ValueError(f"{name!r} is a preset and also a path here; write './{name}' for the path, or run elsewhere")
    return True


def _read_keys(name):
    """The dict in a config.json."""
    path = Path(name)
    file = path / "config.json" if path.is_dir() else path
    if file.is_file():
        keys = parsed(file)
        if file == path and not keys:
            raise ValueError(f"{name!r} is empty; it must hold config keys")
        return keys if file == path else _typed(keys, file)
    if path.is_dir():
        raise ValueError(f"the folder {name!r} has no config.json")
    if path.suffix == ".json":
        raise ValueError(f"{name!r} is not a file")
    if name.count("/") != 1 or name.startswith(("tiny/", ".", "/", "~")):
        try:
            preset_keys(name)
        except ValueError as error:
            raise ValueError(f"{error}; nor is it a .json, a folder, or an id of the Hub (owner/name)") from None
    return _typed(parsed(_fetched(name)), name)


def keys_of_folder(folder):
    """The keys of the config.json in a folder, which name a model type. Raises ValueError with what is wrong."""
    keys = _read_keys(str(folder))
    if not isinstance(keys["model_type"], str):
        raise ValueError(f"{folder}: model_type={keys['model_type']!r} must be one word")
    return keys


def _typed(keys, name):
    """The keys of a checkpoint's config, which must say whose they are; a .json of its own may hold the family's alone."""
    if "model_type" not in keys:
        _ours(keys)  # a key that is misspelt says more
        raise ValueError(f"the config.json of {str(name)!r} names no model_type, so what its keys mean is not known; add it")
    return keys


def _fetched(repo):
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repo, "config.json"))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{repo!r} is no preset, file or folder here, and no config.json of that Hub id: {reason}") from None


# What a model is built from before anything else, and other names of it that no `attribute_map` of transformers tells.
_SIZES = {
    "hidden_size": (),
    "intermediate_size": ("d_ff", "ffn_dim", "encoder_ffn_dim"),
    "num_hidden_layers": (),
    "num_attention_heads": (),
    "vocab_size": (),
}


def _sizes_of(cls):
    """(name of ours, name that the native class `cls` has for it) of the sizes of a model."""
    for size, others in _SIZES.items():
        declared = [other for other in others if hasattr(cls, other)]
        yield size, cls.attribute_map.get(size, declared[0] if declared else size)


def _refuse_sizes_below_one(model_type, keys, name):
    from transformers import CONFIG_MAPPING

    for names in _sizes_of(CONFIG_MAPPING[model_type]):
        for key in names:
            value = keys.get(key)
            if isinstance(value, (int, float)) and value < 1:
                raise ValueError(f"{name}: {key}={value!r} must be at least 1")


def _refuse_missing_sizes(native, keys, name):
    """Refuse a native config.json without its model's sizes, for which transformers takes those of another model.

    Sizes under an older name that the class still reads differ from its default, and are there.
    """
    default, missing = type(native)(), {}
    for size, key in _sizes_of(type(native)):
        value = getattr(native, key, None)
        if value is not None and key not in keys and size not in keys and value == getattr(default, key, None):
            missing[key] = value
    if missing:
        taken = ", ".join(f"{key} {value}" for key, value in missing.items())
        raise ValueError(
            f"{name} lacks {', '.join(missing)}, for which transformers would take the defaults of {native.model_type} "
            f"({taken}); add what the model has"
        )


def _refuse_unknown_type(model_type, keys, name):
    """As `find_family`, with a word on the text part of a config that has several."""
    from hf_variants.convert.registry import family_names, find_family

    if model_type == _IMAGES:
        raise ValueError(
            f"{name} reads images, and this is counted of text alone: give its text_config as a .json of its own; `count`, "
            "`plan-memory` and `image-cost` take the whole"
        )
    try:
        find_family(model_type)
    except ValueError as error:
        text = keys.get("text_config")
        if isinstance(text, dict) and text.get("model_type") in family_names():
            raise ValueError(
                f"{name}: {error}; its text_config is of model_type={text['model_type']!r}, which converts: give it as a "
                ".json of its own"
            ) from None
        raise ValueError(f"{name}: {error}") from None
