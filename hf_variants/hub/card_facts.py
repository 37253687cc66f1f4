"""What the card says: counted from the config, never measured or remembered.

Notable here: toggles are compared with a config of the same shape, so that decisions stand out; no path of the machine
that saved the model is written.
"""

import re
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

import jinja2
import transformers

from ..analysis import count_parameters
from ..analysis.describe import cache_facts, layer_kinds
from ..analysis.head_sizes import row_classifier_size, span_size, stack_head_size, token_classifier_size
from ..modeling.configuration_variants import VariantsConfig
from .composite_facts import composite_facts, is_composite
from .quantization_facts import quantization_of, quantized_section

TEMPLATE = Path(__file__).with_name("card.jinja")
# Class -> (Auto class, pipeline tag, size of what it has beside the stack; None: what the counts say).
HEADS = {
    "VariantsModel": ("AutoModel", "feature-extraction", stack_head_size),
    "VariantsForCausalLM": ("AutoModelForCausalLM", "text-generation", None),
    "VariantsForMaskedLM": ("AutoModelForMaskedLM", "fill-mask", None),
    "VariantsForSequenceClassification": (
        "AutoModelForSequenceClassification",
        "text-classification",
        row_classifier_size,
    ),
    "VariantsForTokenClassification": (
        "AutoModelForTokenClassification",
        "token-classification",
        token_classifier_size,
    ),
    "VariantsForQuestionAnswering": ("AutoModelForQuestionAnswering", "question-answering", span_size),
}
_DEFAULTS = {field.name: field.default for field in fields(VariantsConfig)}
_SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
# Shown in the table of layers, elsewhere on the card, or no choice of architecture.
_ELSEWHERE = {
    *("layer_types", "mlp_layer_types", "no_rope_layers", "native"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "use_cache", "output_router_logits"),
}


def card_facts(model, repo_id=None, directory=None):
    """dict with `title`, `section` (markdown), `pipeline_tag` and `base_model` (a repo id or None).

    `directory` is where the model was saved: what a quantization report there measured is told.
    """
    config = model.config
    base_model = repo_of_origin(config)
    if is_composite(config):
        return composite_facts(model, repo_id, base_model, toggles_of, _SHAPE, directory)
    auto_class, pipeline_tag, _ = head_of(model)
    title = (repo_id or base_model or type(model).__name__).split("/")[-1]
    section = _template().render(
        auto_class=auto_class,
        class_name=type(model).__name__,
        is_causal=config.is_causal,
        shape={name: getattr(config, name) for name in _SHAPE},
        toggles=toggles_of(config),
        layers=layer_kinds(config),
        parameters=parameters_of(model),
        cache=cache_facts(config, config.max_position_embeddings),
        quantization=quantization_of(config),
        quantized_section=quantized_section(config, directory),
        dtype=str(model.dtype).removeprefix("torch."),
        native=(config.native or {}).get("model_type"),
        base_model=base_model if base_model != repo_id else None,
        repo=repo_id or "path/or/repo-id",
        transformers_version=transformers.__version__,
    )
    return {
        "title": title,
        "section": section.strip(),
        "pipeline_tag": pipeline_tag,
        "base_model": base_model,
    }


@lru_cache(maxsize=1)
def _template():
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def head_of(model):
    """The entry of `HEADS` for a model; a subclass has that of the class it extends. Raises ValueError for others."""
    for cls in type(model).__mro__:
        if cls.__name__ in HEADS:
            return HEADS[cls.__name__]
    raise ValueError(f"{type(model).__name__} is no model of the family; known are {sorted(HEADS)}")


def parameters_of(model):
    """(total, active per token) of the model with its own head, from the config."""
    counts, (_, _, head) = count_parameters(model.config), head_of(model)
    ours = sum(counts.parts.get(part, 0) for part in ("lm_head", "head_transform"))
    change = 0 if head is None else head(model.config).total - ours
    return {"total": counts.total + change, "active": counts.active + change}


def toggles_of(config):
    """{key: value} of the config where it differs from a default config of this shape, or could not be left out."""
    names = [field.name for field in fields(VariantsConfig) if field.name in VariantsConfig.__annotations__]
    given = {name: getattr(config, name) for name in names}
    # head_dim=2 fits any shape, and is not compared
    plain = VariantsConfig(**{name: given[name] for name in _SHAPE}, head_dim=2)
    asked = [name for name in names if name not in _ELSEWHERE and name not in _SHAPE]
    other = {name for name in asked if name != "head_dim" and given[name] != getattr(plain, name)}
    unsure = [name for name in asked if name not in other and given[name] != _DEFAULTS[name]]
    # one config answers for all that follow from others, nearly always
    chosen = set() if _follow(unsure, given) else {name for name in unsure if not _follow([name], given)}
    return {name: given[name] for name in asked if name in other or name in chosen}


def _follow(names, given):
    """Whether the config without these keys is the same: a yes may follow from others, or be refused where it is not said."""
    try:
        rest = VariantsConfig(**{key: value for key, value in given.items() if key not in names})
    except ValueError:
        return False
    return all(getattr(rest, name) == given[name] for name in names)


def repo_of_origin(config):
    """The repo id that the weights were loaded from, or None; a directory of this machine is no provenance for others."""
    name = str(getattr(config, "_name_or_path", None) or "")
    is_repo_id = re.fullmatch(r"[A-Za-z0-9][\w.\-]*/[\w.\-]+", name) is not None
    return name if is_repo_id and not Path(name).exists() else None
