"""Recipes: a YAML file, `key=value` words and Python keywords become one checked dataclass.

Notable here: the dataclass is the only list of keys, so YAML, flags and Python cannot disagree; a misspelt key or a
wrong type is a ValueError that names the nearest key; no torch is imported, so that the command line answers at once.
"""

import dataclasses
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from ..modeling.vocabulary import nearest
from .bounds import Bounds, check_numbers
from .processes import print_once


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-3 as text; recipes are full of such learning rates."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


# what a list, a mapping or a quoted text begins with; other words are single values
_MARKED = ("[", "{", '"', "'")


def parse_value(text):
    """The value of one `key=value` word, read as YAML: `3`, `1e-3`, `true`, `null`, `[1, 2]`, `{a: 1}` or plain
    text, of which a colon or a hash is a part.

    Raises:
        ValueError: for text that is no YAML.
    """
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        if text.lstrip().startswith(_MARKED):
            raise ValueError(f"value {text!r} is not valid YAML: {error}") from None
        return text
    if text.lstrip().startswith(_MARKED):
        return value
    commented = value is None and text.lstrip().startswith("#")
    return text if commented or isinstance(value, (str, dict)) else value


def read_recipe(path):
    """The mapping in a YAML file. Raises ValueError when it is missing, malformed, or not a mapping."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"config={str(path)!r} is not a file")
    try:
        mapping = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"config={str(path)!r} is not valid YAML: {' '.join(str(error).split())}") from None
    if mapping is None:
        return {}
    if not isinstance(mapping, dict):
        raise ValueError(f"config={str(path)!r} holds a {type(mapping).__name__}; a recipe is a mapping of keys to values")
    return mapping


def parse_words(words):
    """Turn `key=value`, `--key=value` and `--key value` words into a list of (dotted key, value).

    Raises:
        ValueError: for a word that is no setting.
    """
    pairs, waiting = [], list(words)
    while waiting:
        word = waiting.pop(0)
        flag = word.startswith("--")
        key, equals, text = word.removeprefix("--").partition("=")
        if not equals or not key:
            if not key or not flag or not waiting:
                raise ValueError(
                    f"{word!r} is no setting; write key=value (dots reach into sections: trainer.max_steps=100), after the "
                    "recipe.yaml"
                )
            text = waiting.pop(0)
        pairs.append((key.replace("-", "_"), parse_value(text)))
    return pairs


def apply_overrides(mapping, pairs, starts=None):
    """A copy of a nested mapping in which each dotted key is set to its value.

    Args:
        pairs: (dotted key, value), the last one winning.
        starts: sections that may be a text which names what to start from, to the key that holds it when single keys are
            replaced: with {"model": "preset"}, model.hidden_size=64 over `model: quickstart` gives
            `model: {preset: quickstart, hidden_size: 64}`.

    Raises:
        ValueError: for a key into a scalar.
    """
    result = _deep_copy(mapping)
    for dotted, value in pairs:
        node, (*sections, last) = result, dotted.split(".")
        for section in sections:
            child = node.get(section)
            if child is None:
                child = node[section] = {}
            if isinstance(child, str) and node is result and section in (starts or {}):
                child = node[section] = {starts[section]: child}
            if not isinstance(child, dict):
                raise ValueError(
                    f"{dotted}: {section!r} is set to {child!r}, which has no keys to change; give {section}={{...}} whole"
                )
            node = child
        node[last] = value
    return result


def build_spec(cls, mapping, where=""):
    """Make the dataclass `cls` from a nested mapping.

    Raises:
        ValueError: naming key, value and reason, with the nearest known key, for an unknown key, a missing key, a
        wrong type or a number out of range.
    """
    hints = get_type_hints(cls)
    known = {field.name: field for field in dataclasses.fields(cls)}
    for key in mapping:
        if key not in known:
            raise ValueError(f"unknown key {where + str(key)!r}{nearest(key, known)}; known keys: {', '.join(known)}")
    values = {}
    for name, field in known.items():
        if name in mapping:
            values[name] = convert(mapping[name], hints[name], where + name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"key {where + name!r} is missing and has no default")
    spec = cls(**values)
    check_numbers(spec, where)
    return spec


def load_spec(cls, config=None, words=()):
    """The dataclass `cls` from an optional YAML file and overriding words, as the command line gives them; the file may also
    be the first word. What a word leaves of the file without effect is told in a line and dropped, so that it is no error.
    """
    config, words = split_recipe(config, words)
    mapping, pairs = read_recipe(config) if config else {}, parse_words(words)
    _drop_superseded(mapping, pairs, getattr(cls, "superseded", {}))
    _drop_split_keys(mapping, pairs)
    return build_spec(cls, apply_overrides(mapping, pairs, starts_of(cls)))


def _drop_superseded(mapping, pairs, superseded):
    for section, owners in superseded.items():
        given = {key: value for key, value in pairs if key in owners and value is not None}
        keys = mapping.get(section)
        if not given or not isinstance(keys, dict):
            continue
        owner, value = next(iter(given.items()))
        for name in [name for name in keys if f"{section}.{name}" not in owners]:
            print_once(f"the recipe's {section}.{name}={keys.pop(name)!r} is unused, since {owner}={value!r} is given")


def _drop_split_keys(mapping, pairs):
    """How documents would be held out, where a word names the held-out ones."""
    source = dict(pairs).get("data.eval_source")
    keys = mapping.get("data")
    if source is None or not isinstance(keys, dict):
        return
    for name in ("eval_fraction", "split_seed"):
        if name in keys:
            print_once(f"the recipe's data.{name}={keys.pop(name)!r} is unused, since data.eval_source={source!r} is given")


def starts_of(cls):
    """{section: key} of the fields of a spec whose text form names what to start from; see `apply_overrides`."""
    return {field.name: field.metadata["start"] for field in dataclasses.fields(cls) if field.metadata.get("start")}


def split_recipe(config, words):
    """(recipe or None, remaining words): a first word that names a YAML file is the recipe.

    Raises:
        ValueError: where a recipe is named twice.
    """
    words = list(words)
    if not words or words[0].startswith("-") or "=" in words[0] or not words[0].endswith((".yaml", ".yml")):
        return config, words
    if config:
        raise ValueError(f"two recipes are given, {config!r} and {words[0]!r}; name one, and change its keys by key=value")
    return words[0], words[1:]


def convert(value, annotation, key):
    """`value` as the type that `annotation` asks for, or ValueError naming `key`. Numbers widen (int to float);
    nothing else.
    """
    origin = get_origin(annotation)
    if annotation is Any:
        return value
    if origin in (Union, UnionType):
        return _convert_union(value, get_args(annotation), key)
    if origin is Literal:
        if value not in get_args(annotation):
            choices = get_args(annotation)
            raise ValueError(f"{key}={value!r} is unknown{nearest(value, choices)}; choose from {list(choices)}")
        return value
    if dataclasses.is_dataclass(annotation):
        if dataclasses.is_dataclass(value):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"{key}={value!r} must be a section of keys, not a {type(value).__name__}")
        return build_spec(annotation, value, f"{key}.")
    return _convert_plain(value, annotation, key)


def _convert_union(value, options, key):
    if value is None and NoneType in options:
        return None
    for option in options:
        try:
            return convert(value, option, key)
        except ValueError:
            # A section that was meant as such keeps its own message, which names the wrong key inside.
            if dataclasses.is_dataclass(option) and isinstance(value, dict):
                raise
    raise ValueError(f"{key}={value!r} is a {type(value).__name__}; it must be {' or '.join(type_name(o) for o in options)}")


def _convert_plain(value, annotation, key):
    kind, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is list and isinstance(value, tuple):
        value = list(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{key}={value!r} is a {type(value).__name__}; it must be {type_name(annotation)}")
    if kind is list and arguments:
        return [convert(item, arguments[0], f"{key}[{index}]") for index, item in enumerate(value)]
    return _deep_copy(value)


def type_name(annotation):
    """A type as users write it: `int`, `float`, `list of int`, `one of ['a', 'b']`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in (None, NoneType):
        return "null"
    if origin in (Union, UnionType):
        return " or ".join(type_name(argument) for argument in arguments)
    if origin is Literal:
        return f"one of {list(arguments)}"
    if origin is list and arguments:
        return f"list of {type_name(arguments[0])}"
    if dataclasses.is_dataclass(annotation):
        return "section"
    return {"str": "text", "dict": "section"}.get(
        getattr(origin or annotation, "__name__", ""), (origin or annotation).__name__
    )


def describe_keys(cls, where=""):
    """(dotted key, type, default, help) of every key of a spec, sections expanded, for the command line and the
    docs.
    """
    hints, rows = get_type_hints(cls), []
    for field in dataclasses.fields(cls):
        section = _section_of(hints[field.name])
        if section is not None:
            rows += describe_keys(section, f"{where}{field.name}.")
            continue
        rows.append((where + field.name, type_name(hints[field.name]), _default_text(field), field.metadata.get("help", "")))
    return rows


def key(help, default=dataclasses.MISSING, factory=dataclasses.MISSING, start=None, **limits):
    """A dataclass field that carries its help text; without `default` and `factory` the key is required.

    Args:
        start: a text in place of a section is short for {start: text}, so that single keys of it can be replaced.
        limits: of its number, or of each number in its list (`Bounds`: least, most, above, below).
    """
    arguments = {"default": default, "default_factory": factory}
    given = {name: value for name, value in arguments.items() if value is not dataclasses.MISSING}
    return dataclasses.field(metadata={"help": help, "start": start, "bounds": Bounds(**limits)}, **given)


def _section_of(annotation):
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return next((option for option in options if dataclasses.is_dataclass(option)), None)


def _default_text(field):
    if field.default is not dataclasses.MISSING:
        return "null" if field.default is None else str(field.default)
    return "required" if field.default_factory is dataclasses.MISSING else str(field.default_factory())


def _deep_copy(value):
    if isinstance(value, dict):
        return {name: _deep_copy(item) for name, item in value.items()}
    return [_deep_copy(item) for item in value] if isinstance(value, list) else value
