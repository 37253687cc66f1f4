"""Checks of single config fields: type, choice, activation, entries per layer; and the keys that transformers itself stores.

Notable here: shared by the configs of the family; what two fields may not be together is in `config_rules`.
"""

from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin

from .vocabulary import CHOICES, nearest

# Keys that transformers itself stores in a config, beside the fields it declares.
LIBRARY_KEYS = {
    *(
        "auto_map",
        "architectures",
        "quantization_config",
        "transformers_version",
        "num_labels",
        "torch_dtype",
        "dtype",
    ),
    *("name_or_path", "model_type", "output_attentions", "attn_implementation", "experts_implementation", "use_cache"),
    *("_commit_hash", "tie_last_hidden_states", "task_specific_params", "base_model_prefix", "finetuning_task"),
    *("output_router_logits", "custom_pipelines", "per_layer_config", "trust_remote_code", "code_revision"),
    *("pretraining_tp", "compression_config", "tokenizer_class", "processor_class", "loss_type"),
    *("gradient_checkpointing", "distributed_config", "fusion_config"),
}


def generation_keys():
    """Keys that transformers moves to, or asks for in, the generation config."""
    from transformers import GenerationConfig

    return set(GenerationConfig._get_default_generation_params())


@cache
def _allowed_types(annotation):
    if get_origin(annotation) in (Union, UnionType):
        return tuple(t for arg in get_args(annotation) for t in _allowed_types(arg))
    return (float, int) if annotation is float else (get_origin(annotation) or annotation,)


def check_types(config, annotations):
    """Refuse a field of the wrong type: the base class checks its own fields only, and with errors of its own kind."""
    for name, annotation in annotations.items():
        if get_origin(annotation) is ClassVar or annotation is Any:
            continue
        allowed, value = _allowed_types(annotation), getattr(config, name)
        if isinstance(value, tuple) and list in allowed:
            value = list(value)
            setattr(config, name, value)
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{name}={value!r} must be a finite number")
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            expected = " or ".join("None" if t is type(None) else t.__name__ for t in allowed)
            raise ValueError(f"{name}={value!r} is a {type(value).__name__}; it must be {expected}")


def check_choice(name, value):
    """Refuse a value that `CHOICES[name]` does not list."""
    if value not in CHOICES[name]:
        raise ValueError(f"{name}={value!r} is unknown{nearest(value, CHOICES[name])}; choose from {list(CHOICES[name])}")


def check_activation(name, value):
    """Refuse an activation that transformers' ACT2FN does not know; None is for the optional ones."""
    from transformers.activations import ACT2FN

    if value is not None and value not in ACT2FN:
        raise ValueError(f"{name}={value!r} is unknown{nearest(value, ACT2FN)}; choose from {sorted(ACT2FN)}")


def check_per_layer(config, name):
    """Refuse a list of choices that has an unknown entry, or not one entry per layer."""
    values = getattr(config, name)
    for value in values:
        check_choice(name, value)
    # a depth below one is the rules' to refuse
    if len(values) != config.num_hidden_layers and config.num_hidden_layers > 0:
        raise ValueError(
            f"{name} has {len(values)} entries, but num_hidden_layers={config.num_hidden_layers}; give one entry per layer, "
            "or null (None) where they follow from other keys"
        )
