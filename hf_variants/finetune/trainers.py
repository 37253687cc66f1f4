"""The trainer of each task: TRL's for chats and preferences, this package's own beneath it for what every run shares.

Notable here: the recipe's `trainer` section holds the names of the class that is used, checked against it; what the recipe
says elsewhere is refused there.
"""

import dataclasses
import warnings
from typing import get_type_hints

from ..modeling.vocabulary import nearest
from ..training.arguments import DEFAULTS as RUN_DEFAULTS
from ..training.arguments import check_trainer_numbers, refuse_smoothing
from ..training.spec_parsing import convert

_ELSEWHERE = {
    "output_dir": "output_dir at the top of the recipe",
    "seed": "seed at the top of the recipe",
    "resume_from_checkpoint": "nothing: a run always continues from its last good checkpoint",
    "max_length": "data.sequence_length",
    "truncation_mode": "data.over_long",
    "completion_only_loss": "loss_on",
    "assistant_only_loss": "loss_on",
    "chat_template_path": "chat_template",
    "model_init_kwargs": "toggles and dtype",
    "dataset_text_field": "data",
}
# TRL turns both on; here they are asked for.
_TRL_DEFAULTS = {"bf16": False, "gradient_checkpointing": False}
_OWN_DEFAULTS = {"weight_decay": 0.0, "adam_beta2": 0.999, "eval_on_start": True}


def argument_class(task):
    """The class whose names the `trainer` section of a task takes. Raises ValueError where TRL is not installed."""
    from transformers import TrainingArguments

    if task in ("continued", "classification"):
        return TrainingArguments
    try:
        import trl
    except ImportError:
        raise ValueError(f"task={task!r} needs TRL: pip install 'hf-variants[finetune]'") from None
    return {"supervised": trl.SFTConfig, "preference": trl.DPOConfig}[task]


def arguments_of(spec):
    """The arguments of a spec's trainer.

    Raises:
        ValueError: for an unknown key of `trainer` (the nearest is named), a wrong type, a key that the recipe says elsewhere,
            or a value that transformers or TRL refuse, with their reason.
    """
    import torch

    cls = argument_class(spec.task)
    if spec.task == "preference":
        refuse_smoothing(spec.trainer, "DPO compares answers and reads no labels; its own key is trainer.label_smoothing")
    hints = get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(cls) if field.init} - set(_ELSEWHERE)
    section = {}
    for key, value in spec.trainer.items():
        if key in _ELSEWHERE:
            raise ValueError(f"trainer.{key}={value!r} does not belong here; use {_ELSEWHERE[key]}")
        if key not in known:
            raise ValueError(f"unknown key 'trainer.{key}'{nearest(key, known)}; it takes the names of {cls.__name__}")
        section[key] = convert(value, hints[key], f"trainer.{key}")
    check_trainer_numbers(section)
    machine = {"dataloader_pin_memory": torch.cuda.is_available(), "use_cpu": not torch.accelerator.is_available()}
    defaults = {**RUN_DEFAULTS, **_OWN_DEFAULTS, **machine}
    if spec.task in ("supervised", "preference"):
        defaults.update(_TRL_DEFAULTS, max_length=spec.data.sequence_length)
    try:
        with warnings.catch_warnings():
            # of TRL's own default, which transformers has renamed
            warnings.filterwarnings("ignore", message="`gradient_checkpointing` is deprecated")
            return cls(output_dir=spec.output_dir, seed=spec.seed, **{**defaults, **section})
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        raise ValueError(f"trainer: {' '.join(str(error).split())}") from None


def check_batches(arguments, examples):
    """Refuse batches that would give no optimizer step, or leave processes without rows. Raises ValueError."""
    rows = arguments.train_batch_size * arguments.world_size
    if arguments.dataloader_drop_last and rows > examples:
        raise ValueError(
            f"{examples} training examples do not fill one batch of trainer.per_device_train_batch_size="
            f"{arguments.per_device_train_batch_size} on {arguments.world_size} process(es), and trainer.dataloader_drop_last="
            "true drops it; lower the batch"
        )
    if examples < arguments.world_size:
        raise ValueError(f"{examples} training examples are less than one for each of the {arguments.world_size} processes")


def make_trainer(spec, arguments, model, tokenizer, examples, peft_config, names=(), reference=None):
    """The trainer of a supervised, preference or classification run, ready to train.

    Args:
        reference: the second model of a preference run whose weights are sharded; without one TRL finds it itself.

    Raises:
        ValueError: where TRL refuses examples, template or loss, with its reason.
    """
    make = {"supervised": _supervised, "preference": _preference, "classification": _classification}[spec.task]
    common = {"model": model, "args": arguments, "processing_class": tokenizer}
    if reference is not None:
        common["ref_model"] = reference
    try:
        trainer = make(spec, arguments, common, examples, peft_config, names)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"task={spec.task!r}: {' '.join(str(error).split())}") from error
    return trainer


def _supervised(spec, arguments, common, examples, peft_config, names):
    from trl import SFTTrainer

    from ..training.trainer import VariantsTrainer

    class SupervisedTrainer(VariantsTrainer, SFTTrainer):
        """SFTTrainer with the decay groups of this package."""

    chats = "messages" in examples.train.column_names
    arguments.completion_only_loss = spec.loss_on == "completion" and not chats
    arguments.assistant_only_loss = spec.loss_on == "completion" and chats
    parts = {"train_dataset": examples.train, "eval_dataset": examples.eval}
    return SupervisedTrainer(**common, **parts, peft_config=peft_config)


def _preference(spec, arguments, common, examples, peft_config, names):
    from trl import DPOTrainer

    from ..training.trainer import VariantsTrainer

    class PreferenceTrainer(VariantsTrainer, DPOTrainer):
        """DPOTrainer with the decay groups of this package."""

    parts = {"train_dataset": examples.train, "eval_dataset": examples.eval}
    return PreferenceTrainer(**common, **parts, peft_config=peft_config)


def _classification(spec, arguments, common, examples, peft_config, names):
    from transformers import DataCollatorWithPadding

    from ..training.trainer import VariantsTrainer
    from .classification import measured, tokenized

    tokenizer = common["processing_class"]
    parts = {
        "train_dataset": tokenized(examples.train, tokenizer, spec, names),
        "eval_dataset": tokenized(examples.eval, tokenizer, spec, names),
    }
    common["model"] = adapted(common["model"], peft_config)
    collator = DataCollatorWithPadding(tokenizer)
    return VariantsTrainer(**common, **parts, data_collator=collator, compute_metrics=measured)


def adapted(model, peft_config):
    """A model with a fresh adapter on it, ready for 4-bit weights too; without a config the model itself."""
    if peft_config is None:
        return model
    from peft import get_peft_model, prepare_model_for_kbit_training

    if getattr(model, "is_loaded_in_4bit", False):
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return get_peft_model(model, peft_config)
