"""The phases of a recipe: the tower from labels, the language model from words, then bridge and all from images.

Notable here: every phase is one run of transformers' Trainer on the same model, of which the recipe says what is frozen; a
phase that is finished is loaded, not run again.
"""

import time
from pathlib import Path

import torch
from torch import nn

from ..training.processes import is_writer
from ..training.stages import run_stage
from .batches import QuestionCollator, Questions, maker_of
from .digits import DIGITS

# part of the model -> beginnings of its parameters' names
PREFIXES = {
    "tower": ("model.vision_tower.",),
    "bridge": ("model.multi_modal_projector.", "model.cross_layers."),
    "text": ("model.language_model.", "lm_head."),
}
# examples of different phases never coincide
STRIDE = 100_000_000


class TowerProbe(nn.Module):
    """The tower with a classifier on the mean of its patches, which is dropped when the tower is trained."""

    def __init__(self, tower, classes=DIGITS):
        super().__init__()
        self.tower, self.classifier = tower, nn.Linear(tower.width, classes)

    def forward(self, pixel_values, labels=None):
        logits = self.classifier(self.tower(pixel_values).mean(dim=1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def part_of(name):
    """The part that a parameter of the model belongs to. Raises ValueError for one that belongs to none."""
    for part, prefixes in PREFIXES.items():
        if name.startswith(prefixes):
            return part
    raise ValueError(f"the parameter {name!r} belongs to no part; known are {PREFIXES}")


def freeze(model, trained):
    """Let gradients reach the parts `trained` alone; returns the number of their parameters."""
    count = 0
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part_of(name) in trained)
        count += parameter.numel() * parameter.requires_grad
    return count


def trainer_arguments(spec, phase, directory):
    """TrainingArguments of a phase. Raises ValueError for keys of `trainer` that are unknown or said elsewhere."""
    from transformers import TrainingArguments

    from ..training.arguments import check_trainer_section, refuse_smoothing

    section = check_trainer_section(spec.trainer)
    said = {"max_steps": "steps", "learning_rate": "learning_rate", "per_device_train_batch_size": "batch_size"}
    for name, place in said.items():
        if name in spec.trainer:
            raise ValueError(f"trainer.{name}={spec.trainer[name]!r} differs from phase to phase; use phases[].{place}")
    decided = {
        **dict.fromkeys(("num_train_epochs",), "phases[].steps say how long each is"),
        **dict.fromkeys(("train_sampling_strategy", "remove_unused_columns"), "examples are made by their numbers, in order"),
        **dict.fromkeys(("eval_strategy", "eval_steps", "eval_on_start"), "measure_every says when a phase is measured"),
        **dict.fromkeys(("load_best_model_at_end", "metric_for_best_model"), "a phase hands its last weights on"),
    }
    refuse_smoothing(spec.trainer, "the loss of a phase is that of the model or of the probe; leave it out")
    for name in spec.trainer:
        if name in decided:
            raise ValueError(f"trainer.{name}={spec.trainer[name]!r} does not belong here: {decided[name]}")
    defaults = {
        **{"lr_scheduler_type": "cosine", "warmup_steps": 0.1, "weight_decay": 0.05, "adam_beta2": 0.98},
        **{"logging_steps": 20, "report_to": "none", "save_strategy": "no", "eval_strategy": "no"},
        "dataloader_pin_memory": torch.cuda.is_available(),
        "use_cpu": not torch.accelerator.is_available(),
    }
    fixed = {
        "output_dir": str(directory),
        "seed": spec.seed,
        "max_steps": phase.steps,
        "learning_rate": phase.learning_rate,
        "per_device_train_batch_size": phase.batch_size,
        # examples are drawn by number, and so are in no order to begin with
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
    }
    return TrainingArguments(**{**defaults, **section, **fixed})


def run_phase(spec, index, model, tokenizer, images, previous, measure, announce):
    """Train phase `index` and return {seconds, trained, log, measures, directory}; `model` holds its weights afterwards.

    Args:
        images: the training `Images`.
        previous: fingerprint of what the model was before.
        measure: None, or () -> dict of numbers, called every `spec.measure_every` steps of a phase that reads images.
    """
    phase, directory = spec.phases[index], Path(spec.output_dir) / "phases" / f"{index + 1}-{spec.phases[index].name}"
    settings = {"phase": vars(phase), "data": vars(spec.data), "trainer": spec.trainer, "seed": spec.seed, "before": previous}
    arguments = trainer_arguments(spec, phase, directory)
    settings.update(split_over(arguments), measure_every=spec.measure_every)
    done = []

    def work():
        done.append(True)
        return _train(spec, index, phase, directory, arguments, model, tokenizer, images, measure, announce)

    result = run_stage(phase.name, directory, settings, work, overwrite=spec.overwrite, announce=announce, arguments=arguments)
    if not done:
        load_weights(model, directory)
    return {**result, "directory": str(directory)}


def split_over(arguments):
    """{"processes": number} for the settings of a stage, since each process has a batch of its own; {} for a single one."""
    return {} if arguments.world_size == 1 else {"processes": arguments.world_size}


def load_weights(model, directory):
    """Fill a model with the weights that a finished phase left."""
    found = type(model).from_pretrained(directory)
    model.load_state_dict(found.state_dict())


def _train(spec, index, phase, directory, arguments, model, tokenizer, images, measure, announce):
    from transformers import set_seed

    from ..training.progress import shorten_progress
    from ..training.trainer import VariantsTrainer

    # so that a run that goes on behind a finished phase draws what an unbroken one would
    set_seed(spec.seed + index)
    trained = freeze(model, phase.trains)
    rows = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    announce(
        f"phase {phase.name}: {phase.steps} steps of {rows} on {phase.reads}; trains {', '.join(phase.trains)} "
        f"({trained:,} parameters)"
    )
    kinds = ["digit"] if phase.reads == "labels" else None
    maker = maker_of(spec, images, False, spec.seed + 1, kinds)
    side = model.config.image_grid[0] * _side(model.config.vision_config.patch_size)
    collate = QuestionCollator(
        tokenizer, images, side, model.config.tokens_of_image(), phase.reads, jiggled=spec.data.jiggle, seed=spec.seed
    )
    trainer = VariantsTrainer(
        model=TowerProbe(model.model.vision_tower) if phase.reads == "labels" else model,
        args=arguments,
        data_collator=collate,
        train_dataset=Questions(maker, phase.steps * rows, start=index * STRIDE),
    )
    shorten_progress(trainer)
    measures = []
    if measure is not None and spec.measure_every and phase.reads == "images":
        trainer.add_callback(MeasureCallback(measure, spec.measure_every, measures))
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    model.eval()
    if is_writer():
        model.save_pretrained(directory)
    log = [{"step": line["step"], "loss": line["loss"]} for line in trainer.state.log_history if "loss" in line]
    return {"seconds": seconds, "trained": trained, "log": log, "measures": measures}


def _side(value):
    return value[0] if isinstance(value, (list, tuple)) else value


def MeasureCallback(measure, every, found):  # noqa: N802 - a class, made late: TrainerCallback takes a second to import
    """A TrainerCallback that appends {"step", **measure()} to `found`, before the first step and every so many."""
    from transformers import TrainerCallback

    class Measures(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs):
            self.take(state, model)

        def on_step_end(self, args, state, control, model=None, **kwargs):
            if state.global_step % every == 0:
                self.take(state, model)

        def take(self, state, model):
            model.eval()
            found.append({"step": state.global_step, **measure()})
            model.train()

    return Measures()
