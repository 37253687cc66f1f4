"""Native config <-> VariantsConfig.

Notable here: the way back is checked, not trusted. A written native config is read again and compared field by field,
so a toggle that a family cannot express is found whatever it is. Native settings that no toggle means (dead keys,
defaults, the form in which a thing was said) are kept in `config.native` and written back wherever they do not
contradict the toggles.
"""

import copy
import json

from hf_variants.convert.expression import Inexpressible, families_like, lost_toggles, who_could
from hf_variants.convert.meaning import differences
from hf_variants.convert.quiet import quiet
from hf_variants.convert.registry import find_family

# What names a checkpoint rather than a model: set anew by whoever saves.
BOOKKEEPING = {
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "quantization_config",
    "_attn_implementation",
}


def config_from_native(native):
    """The VariantsConfig that means what a native config means.

    Args:
        native: config object of a known family.

    Returns:
        VariantsConfig with `native = {"model_type", "config"}` holding what no toggle means. A warning says what of it acts in
            native training.

    Raises:
        ValueError: unknown family, or a native setting that ours cannot mean, with the reason.
    """
    found = find_family(native.model_type)
    config = _read(found, native)
    if untrained := found.untrained(native):
        _warn(f"{found.model_type} trains otherwise than what it becomes: {'; '.join(untrained)}.")
    config.native = {"model_type": found.model_type, "config": _residue(found, native, config)}
    config.dtype = getattr(native, "dtype", None)
    copy_labels(native, config)
    return config


def config_to_native(config, family_name=None):
    """The native config that means what a VariantsConfig means.

    Args:
        config: VariantsConfig.
        family_name: model type to write; None takes the one `config.native` names, else the first that can express the
        toggles.

    Raises:
        ValueError: naming every toggle that the family cannot express, and the families that could.
    """
    name = family_name or (config.native or {}).get("model_type")
    if name is None:
        return _first_that_fits(config)
    try:
        return _written(find_family(name), config)
    except Inexpressible as error:
        with quiet():
            others = who_could(config, error.lost, _written)
        raise ValueError(f"{error}. {others}") from error


def _warn(text):
    from transformers.utils import logging

    logging.get_logger(__name__).warning(text)


def can_express(model_type, config):
    """Whether a native family means exactly what a VariantsConfig means; quicker than the error that says why not."""
    try:
        _tried(find_family(model_type), config)
    except Inexpressible:
        return False
    return True


def _first_that_fits(config):
    fitting, closest = [], None
    with quiet():
        for found in families_like(config):
            try:
                fitting.append((found.model_type, _tried(found, config)))
            except Inexpressible as error:
                closest = error if closest is None or error.count < closest.count else closest
        if not fitting:
            raise ValueError(f"the closest native family: {closest}. {who_could(config, closest.lost, _written)}")
    name, native = fitting[0]
    _warn(
        f"The config can be written as {', '.join(item[0] for item in fitting)}; {name} is used. Name another with `family`."
    )
    return native


def _tried(found, config):
    return _written(found, config, name_all=False)


def _written(found, config, name_all=True):
    if found.two_stacks != (len(config.stacks) > 1):
        kind = "an encoder-decoder" if found.two_stacks else "a single stack"
        raise Inexpressible(found.model_type, {"model_type": (config.model_type, kind)})
    keys = _with_residue(found, config, found.write(config))
    try:
        native = build_native_config(found.model_type, keys)
        again = _read_like(found, native, config)
    except ValueError as error:
        readable = _nearest_readable(found, keys) if name_all else None
        lost = {} if readable is None else lost_toggles(config, readable)
        raise Inexpressible(found.model_type, lost, error) from error
    lost = lost_toggles(config, again)
    if lost:
        raise Inexpressible(found.model_type, lost)
    native.dtype = getattr(config, "dtype", None)
    copy_labels(config, native)
    return native


def _nearest_readable(found, keys):
    """What the native keys mean without the one that cannot be read, to name what else is in the way; None where several
    cannot.
    """
    for key in keys:
        try:
            return _read(found, build_native_config(found.model_type, {k: v for k, v in keys.items() if k != key}))
        except (ValueError, KeyError):
            continue
    return None


def copy_labels(source, target):
    """The classes of a task head, which both sides call alike."""
    for key in ("id2label", "label2id", "problem_type"):
        setattr(target, key, copy.deepcopy(getattr(source, key)))


def build_native_config(model_type, keys):
    """A native config object from native keys. Raises ValueError, whatever the library raises."""
    from transformers import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    # None under a key that the class does not declare (CodeGen has no pad_token_id) would only add the key.
    said = {key: value for key, value in keys.items() if value is not None or key in cls.attribute_map or hasattr(cls, key)}
    try:
        fitted = {key: _fitted(cls, key, value) for key, value in said.items()}
        return cls.from_dict(json.loads(json.dumps(fitted)))
    except Exception as error:
        raise ValueError(f"transformers refuses the {model_type} config {keys}: {error}") from error


def _fitted(cls, key, value):
    """Strict native fields take 1.0 but not 1, or 256 but not 256.0, where both mean the same."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    annotation = next(
        (str(base.__annotations__[key]) for base in cls.__mro__ if key in vars(base).get("__annotations__", {})), ""
    )
    if "int" not in annotation and "float" in annotation:
        return float(value)
    if "float" not in annotation and "int" in annotation and float(value).is_integer():
        return int(value)
    return value


def _read(found, native):
    from hf_variants.modeling.configuration_variants import VariantsConfig
    from hf_variants.modeling.configuration_variants_seq2seq import VariantsSeq2SeqConfig

    return (VariantsSeq2SeqConfig if found.two_stacks else VariantsConfig)(**found.read(native))


def _read_like(found, native, config):
    """As `_read`; where the native config cannot say whether the head is tied, it is as `config` says."""
    again = _read(found, native)
    if found.head_told_by_weights:
        set_tied(again, config.tie_word_embeddings)
    return again


def set_tied(config, tied):
    """Say in a config of ours, and in the stack that its head stands on, whether the head is the token table."""
    for part in (config, config.stacks[-1]):
        part.tie_word_embeddings = tied


def as_plain_dict(native):
    """A native config as JSON would hold it, without what names the checkpoint."""
    plain = json.loads(json.dumps(native.to_dict(), default=str))
    return {key: value for key, value in plain.items() if key not in BOOKKEEPING}


def _residue(found, native, config):
    """Native keys that writing `config` would not bring back."""
    given = as_plain_dict(native)
    written = as_plain_dict(build_native_config(found.model_type, found.write(config)))
    return {key: value for key, value in given.items() if key not in written or written[key] != value}


def _with_residue(found, config, keys):
    """Add the kept native keys: all of them where they mean what the toggles say, else each one that does no harm."""
    kept = (config.native or {}).get("config", {}) if (config.native or {}).get("model_type") == found.model_type else {}
    if not kept:
        return keys
    if _means_same(found, config, {**keys, **kept}):
        return {**keys, **kept}
    for key, value in kept.items():
        trial = {**keys, key: value}
        keys = trial if _means_same(found, config, trial) else keys
    return keys


def _means_same(found, config, keys):
    try:
        return not differences(config, _read_like(found, build_native_config(found.model_type, keys), config))
    except ValueError:
        return False
