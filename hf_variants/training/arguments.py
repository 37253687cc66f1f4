"""The `trainer` section of a recipe, checked against transformers' TrainingArguments.

Notable here: names, types and meanings are transformers' own; only defaults that suit runs which may be interrupted
differ.
"""

import dataclasses
from typing import get_type_hints

from ..modeling.vocabulary import nearest
from .bounds import Bounds
from .spec_parsing import convert

# Keys of TrainingArguments that a recipe says elsewhere, each with the place.
_SAID_ELSEWHERE = {
    "output_dir": "output_dir at the top of the recipe",
    "seed": "seed at the top of the recipe",
    "resume_from_checkpoint": "nothing: a run always continues from its last good checkpoint",
}

_POSITIVE, _COUNT, _SHARE, _FROM_ZERO = Bounds(above=0), Bounds(least=1), Bounds(least=0, below=1), Bounds(least=0)
# What torch refuses when the optimizer is made, after all data is read, or what passes and does nothing.
_BOUNDS = {
    **dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "dataloader_num_workers"), _FROM_ZERO),
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"), _COUNT),
    **dict.fromkeys(("logging_steps", "eval_steps", "save_steps", "num_train_epochs", "adam_epsilon", "beta"), _POSITIVE),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "label_smoothing_factor"), _SHARE),
    "save_total_limit": _COUNT,
    "max_steps": Bounds(least=-1),
}

DEFAULTS = {
    "max_grad_norm": 1.0,
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.05,
    "logging_steps": 20,
    "eval_strategy": "steps",
    "eval_steps": 200,
    "save_strategy": "steps",
    "save_steps": 200,
    "save_total_limit": 2,
    "report_to": "none",
    # a loss that is no number stops the run (VariantsTrainer); the filter would only hide it from the log
    "logging_nan_inf_filter": False,
    # every parameter of the family takes part in every step, experts without tokens too
    "ddp_find_unused_parameters": False,
}


def check_trainer_section(section):
    """The section with numbers in the types that TrainingArguments declares.

    Raises:
        ValueError: for an unknown key (the nearest is named), a wrong type, or a key that the recipe says elsewhere.
    """
    from transformers import TrainingArguments

    hints = get_type_hints(TrainingArguments)
    known = {field.name for field in dataclasses.fields(TrainingArguments) if field.init} - set(_SAID_ELSEWHERE)
    checked = {}
    for key, value in section.items():
        if key in _SAID_ELSEWHERE:
            raise ValueError(f"trainer.{key}={value!r} does not belong here; use {_SAID_ELSEWHERE[key]}")
        if key not in known:
            raise ValueError(f"unknown key 'trainer.{key}'{nearest(key, known)}; it takes the names of TrainingArguments")
        # declared as text for the sake of its command line, but true is what it asks for
        checked[key] = value if key == "fsdp" and value is True else convert(value, hints[key], f"trainer.{key}")
    check_trainer_numbers(checked)
    return checked


def check_trainer_numbers(section):
    """Raise a ValueError for a number of a `trainer` section that would fail late, or do nothing without a word."""
    for key, value in section.items():
        _BOUNDS.get(key, Bounds()).check(value, f"trainer.{key}")


def refuse_smoothing(section, reason):
    """Raise a ValueError for a `trainer` section that asks for smoothed labels where `reason` says that none are."""
    if value := section.get("label_smoothing_factor"):
        raise ValueError(f"trainer.label_smoothing_factor={value!r} does not belong here: {reason}")


# Trainer takes the labels away, from which an encoder-decoder makes what its decoder reads
NO_LABELS_LEFT = "Trainer would keep the labels, which the decoder reads, to itself; leave it out"


def training_arguments(spec):
    """TrainingArguments of a spec. Raises ValueError with transformers' own reason for values that it refuses."""
    import torch
    from transformers import TrainingArguments

    # Several processes without an accelerator find each other only when they are told to stay on the CPU.
    machine = {"dataloader_pin_memory": torch.cuda.is_available(), "use_cpu": not torch.accelerator.is_available()}
    section = {**DEFAULTS, **machine, **check_trainer_section(spec.trainer)}
    try:
        return TrainingArguments(output_dir=spec.output_dir, seed=spec.seed, **section)
    except (ValueError, TypeError, ImportError) as error:
        raise ValueError(f"trainer: {' '.join(str(error).split())}") from None


def check_generation_section(section, where="generation"):
    """The section itself. Raises ValueError for a key that GenerationConfig does not know, naming the nearest.

    Args:
        where: the dotted key of the section.
    """
    from transformers import GenerationConfig

    known = [name for name in vars(GenerationConfig()) if not name.startswith("_")]
    for key in section:
        if key not in known:
            raise ValueError(f"unknown key '{where}.{key}'{nearest(key, known)}; it takes the names of GenerationConfig")
    return section
