"""The table of native families, filled from the files of `families/`.

Notable here: a family is data (a model type, config rules, weight rules); files are found by name and imported when
asked for, so importing the conversions costs nothing.
"""

from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from hf_variants.convert.left_out import LEFT_OUT

# Where a model could go to several families, the best known ones are tried first.
_FIRST = (
    *("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "olmo2", "gemma2", "gemma3_text", "phi3"),
    *("deepseek_v3", "gpt2", "bloom", "gpt_oss"),
)


# Files whose name is not the model type, which no module could have.
_FILES = {"openai_gpt": "openai-gpt", "modernbert_decoder": "modernbert-decoder"}


@dataclass(frozen=True)
class Family:
    """One native family.

    Attributes:
        model_type: transformers' name of it.
        config: list of config rules (`config_map.py`).
        weights: list of weight rules (`weight_rules.py`).
        needs: native keys without which the native defaults alone fail.
    """

    model_type: str
    config: list
    weights: list
    needs: dict = field(default_factory=dict)

    def read(self, native):
        """Keywords of VariantsConfig that a native config object means. Raises ValueError for what none means."""
        keywords = {}
        for rule in self.config:
            keywords.update(rule.read(native))
        return keywords

    def write(self, config):
        """Native keys for a VariantsConfig; not yet checked to mean the same."""
        keys = {}
        for rule in self.config:
            keys.update(rule.write(config))
        return keys


@cache
def family_names():
    """Model types that can be converted, sorted."""
    import hf_variants.convert.families as package

    return sorted(_FILES.get(module.name, module.name) for module in iter_modules(package.__path__))


def find_family(model_type):
    """The family of a model type. Raises ValueError with the reason, or naming the nearest known ones."""
    if model_type in LEFT_OUT:
        raise ValueError(f"model_type={model_type!r} cannot be converted: no toggle means {LEFT_OUT[model_type]}")
    if model_type not in family_names():
        raise ValueError(
            f"model_type={model_type!r} cannot be converted{_nearest(model_type)}; known: {', '.join(family_names())}"
        )
    return import_module(f"hf_variants.convert.families.{file_of(model_type)}").FAMILY


def file_of(model_type):
    """Name of the file of a known model type."""
    return next((name for name, kind in _FILES.items() if kind == model_type), model_type)


def known_families():
    """Every family, in the order in which `to_native` tries them."""
    names = family_names()
    return [find_family(name) for name in (*_FIRST, *(name for name in names if name not in _FIRST))]


def _nearest(model_type):
    from difflib import get_close_matches

    close = get_close_matches(str(model_type), family_names(), n=3, cutoff=0.5)
    return f" (nearest known: {', '.join(close)})" if close else ""
