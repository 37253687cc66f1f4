"""The table of native families, filled from the files of `families/`.

Notable here: a family is data (a model type, config rules, weight rules); files are found by name and imported when
asked for, so importing the conversions costs nothing.
"""

from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from hf_variants.convert.left_out import LEFT_OUT, UNWRITTEN
from hf_variants.convert.vision_families import VISION_FAMILIES, VISION_LEFT_OUT
from hf_variants.convert.weight_rules import matches

# Where a model could go to several families, the best known ones are tried first.
_FIRST = (
    *("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "olmo2", "gemma2", "gemma3_text", "phi3"),
    *("deepseek_v3", "gpt2", "bloom", "gpt_oss", "bert", "roberta", "modernbert"),
)

# Types whose config and models are those of another type; transformers writes them back under that name.
ALIASES = {"gpt-sw3": "gpt2"}

# Files whose name is not the model type, which no module could have.
_FILES = {
    "openai_gpt": "openai-gpt",
    "modernbert_decoder": "modernbert-decoder",
    "xlm_roberta": "xlm-roberta",
    "xlm_roberta_xl": "xlm-roberta-xl",
    "roberta_prelayernorm": "roberta-prelayernorm",
    "megatron_bert": "megatron-bert",
    "data2vec_text": "data2vec-text",
    "bert_generation": "bert-generation",
}


@dataclass(frozen=True)
class Family:
    """One native family.

    Attributes:
        model_type: transformers' name of it.
        config: list of config rules (`config_map.py`).
        weights: list of weight rules (`weight_rules.py`).
        needs: native keys without which the native defaults alone fail.
        heads: {head: weight rules of what it has beside the stack} of the heads that convert, by the names of `heads.py`.
        prefix: of the stack inside a native model with a head.
        other_heads: prefixes of tensors that checkpoints hold for heads that are not being loaded.
        two_stacks: whether it is one of encoder-decoders (`PairFamily`).
    """

    model_type: str
    config: list
    weights: list
    needs: dict = field(default_factory=dict)
    heads: dict = field(default_factory=lambda: {"causal_lm": []})
    prefix: str = "model."
    other_heads: tuple = ()
    two_stacks: bool = False
    head_told_by_weights: bool = False

    def rules(self, head="causal_lm"):
        """The weight rules of a whole model with `head`; those of a bare stack lack the prefixes of the stack."""
        rules = [*self.weights, *self.heads[head]]
        return [rule.without_prefixes(self.prefix, "model.") for rule in rules] if head == "base" else rules

    def is_of_a_head(self, name):
        """Whether a native tensor belongs to some head, one that converts or another."""
        patterns = [pattern for rules in self.heads.values() for rule in rules for pattern in rule.native]
        return name.startswith(tuple(self.other_heads)) or any(matches(pattern, name) for pattern in patterns)

    def every_rule(self):
        """The config rules, of all stacks."""
        return self.config

    def untrained(self, native):
        """What acts in native training alone and means no toggle: a text for each such setting of a native config."""
        return [text for rule in self.config if (text := rule.untrained(native))]

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
    model_type = ALIASES.get(model_type, model_type)
    if model_type in LEFT_OUT:
        raise ValueError(f"model_type={model_type!r} cannot be converted: no toggle means {LEFT_OUT[model_type]}")
    if model_type in VISION_LEFT_OUT:
        raise ValueError(f"model_type={model_type!r} cannot be converted: no toggle means {VISION_LEFT_OUT[model_type]}")
    if model_type in VISION_FAMILIES:
        raise ValueError(
            f"model_type={model_type!r} is a vision-language model: hf_variants.convert.from_native(path) brings it in, "
            "save_pretrained writes it"
        )
    if model_type in UNWRITTEN:
        raise ValueError(
            f"model_type={model_type!r} cannot be converted: no family file has been written for it{_nearest(model_type)}"
        )
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

    close = get_close_matches(str(model_type).strip().lower(), family_names(), n=3, cutoff=0.5)
    return f" (nearest known: {', '.join(close)})" if close else ""
