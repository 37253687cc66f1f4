"""The variants of an ablation: names, what each changes, what it is compared with, and its pretraining keys.

Notable here: a change is a dotted key of the pretraining recipe, so that whatever can be trained can be ablated; data and
tokenizer are the same for all, or their losses could not be compared.
"""

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from ..modeling.vocabulary import nearest
from ..training.models import model_section
from ..training.spec_parsing import apply_overrides, read_recipe

_CHANGEABLE = ("model", "trainer", "optimizer", "muon", "dtype")
_TAKEN = ("output_dir", "seed", "overwrite", "allow_changes", "model_path")


@dataclass
class Variant:
    """One variant.

    Attributes:
        name: as in tables; also the directory of its runs.
        changes: {dotted key: value} relative to the base.
        against: name of the variant it is compared with; None for the base.
        keys: nested mapping of its pretraining recipe.
        matched: {dotted key: value} that was adjusted for the equal budget.
    """

    name: str
    changes: dict
    against: str | None
    keys: dict = field(repr=False)
    matched: dict = field(default_factory=dict)


def base_keys(spec):
    """The nested mapping of the base, its recipe read and its model given as keys.

    Raises:
        ValueError: for a missing recipe, or a key that the ablation sets itself.
    """
    given = dict(spec.base)
    recipe = given.pop("config", None)
    keys = merge(read_recipe(recipe) if recipe else {}, given)
    for name in _TAKEN:
        if given.get(name) is not None:
            raise ValueError(f"base.{name}={given[name]!r} does not belong here: an ablation trains new models in output_dir")
        keys.pop(name, None)
    keys.pop("samples", None)
    if not keys.get("model"):
        raise ValueError("base.model is missing; give VariantsConfig keys, a .json, or the name of a preset")
    keys["model"] = model_section(keys["model"])
    return keys


def variants_of(spec):
    """List of `Variant`, the base first.

    Raises:
        ValueError: for names that are no directory names, repeated or unknown; changes of keys that all variants must share; a
            design without its section.
    """
    keys = base_keys(spec)
    if spec.design == "grid":
        return _grid(spec, keys)
    if spec.grid:
        raise ValueError(f"grid has no effect with design={spec.design!r}; give variants, or design=grid")
    if not spec.variants:
        raise ValueError("variants is empty: name at least one change of the base")
    found, before = [Variant(spec.base_name, {}, None, keys)], keys
    for name, changes in spec.variants.items():
        if not isinstance(changes, dict) or not changes:
            raise ValueError(f"variants.{name}={changes!r} must be a section of dotted keys, such as {{model.qk_norm: head}}")
        changes = flat(changes)
        against = changes.pop("against", found[-1].name if spec.design == "staircase" else spec.base_name)
        start = before if spec.design == "staircase" else keys
        variant = Variant(str(name), changes, against, changed(start, changes, f"variants.{name}"))
        found.append(variant)
        before = variant.keys
    return _checked(found)


def _grid(spec, keys):
    if spec.variants:
        raise ValueError("variants has no effect with design='grid'; give grid, or another design")
    if not spec.grid:
        raise ValueError("grid is empty: give {dotted key: [values]}")
    for key, values in spec.grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"grid.{key}={values!r} must be a list of values")
    found = []
    for values in product(*spec.grid.values()):
        changes = dict(zip(spec.grid, values, strict=True))
        name = ", ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in changes.items())
        against = found[0].name if found else None
        found.append(Variant(name, changes, against, changed(keys, changes, "grid")))
    return _checked(found)


def _checked(variants):
    names = [variant.name for variant in variants]
    for variant in variants:
        if names.count(variant.name) > 1:
            raise ValueError(f"the name {variant.name!r} stands for two variants")
        if Path(variant.name).name != variant.name or variant.name in ("", ".", ".."):
            raise ValueError(f"the name {variant.name!r} is no name of a directory")
        if variant.against is not None and variant.against not in names:
            raise ValueError(
                f"variants.{variant.name}.against={variant.against!r} is no variant{nearest(variant.against, names)}; choose "
                f"from {names}"
            )
        if variant.against == variant.name:
            raise ValueError(f"variants.{variant.name}.against names itself")
    return variants


def changed(keys, changes, where):
    """A copy of a nested mapping with dotted keys set, or left out where the value is None. Raises ValueError for a key that
    every variant must share.
    """
    for key in changes:
        if key.split(".")[0] not in _CHANGEABLE:
            raise ValueError(
                f"{where}: {key!r} cannot be changed by a variant; it may change {', '.join(_CHANGEABLE)} (data, tokenizer "
                "and seeds are the same for all, so that losses can be compared)"
            )
    result = apply_overrides(keys, [(key, value) for key, value in changes.items() if value is not None])
    for key, value in changes.items():
        if value is None:
            *sections, last = key.split(".")
            node = result
            for section in sections:
                node = node.get(section, {})
            node.pop(last, None)
    return result


def flat(mapping, where=""):
    """{dotted key: value} of sections that may be nested: {model: {qk_norm: head}} is {model.qk_norm: head}."""
    found = {}
    for key, value in mapping.items():
        if isinstance(value, dict) and (where + str(key)) in ("model", "trainer"):
            found.update(flat(value, f"{key}."))
        else:
            found[where + str(key)] = value
    return found


def merge(base, over):
    """A nested mapping with the keys of another over it."""
    merged = dict(base)
    for name, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merge(merged[name], value) if both else value
    return merged
