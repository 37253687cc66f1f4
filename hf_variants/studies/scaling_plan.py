"""The runs of a scaling study: sizes x token counts x seeds, and what the schedule of each looks like.

    warm-up | constant ------------- | falls             D1
    warm-up | constant ----------------------- | falls   D2, which is D1 up to where D1 begins to fall

Notable here: rate and order of the data are the same for every token count until a run begins to decay, so a longer run may
start from the checkpoint that the shorter one wrote there, and equals one that was trained from nothing.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ..ablation.planning import PlannedRun, with_shared_rows
from ..ablation.variants import Variant, base_keys, changed, flat
from ..analysis import count_parameters
from ..report.plot_file import check_matplotlib
from ..training.arguments import DEFAULTS, training_arguments
from ..training.bounds import check_numbers
from ..training.models import build_config, check_model_entry
from ..training.pretraining import check_parts, rows_per_step, stage_settings, training_flops
from ..training.spec_parsing import build_spec
from ..training.specs import TrainingSpec

# Keys of `trainer` that the study decides.
_SCHEDULE = ("max_steps", "num_train_epochs", "lr_scheduler_type", "lr_scheduler_kwargs", "save_strategy", "save_total_limit")


@dataclass
class StudyRun(PlannedRun):
    """One run, of a size, a seed and a token count.

    Attributes:
        steps, decay_start: optimizer steps, and the one after which the learning rate falls.
        tokens: trained on.
        total, non_embedding: parameters.
        flops: training operations counted from the config, forward and backward.
    """

    steps: int = 0
    decay_start: int = 0
    tokens: int = 0
    total: int = 0
    non_embedding: int = 0
    flops: float = 0.0


def check_study(spec):
    """Refuse impossible numbers of a `ScalingStudySpec`, and to draw without matplotlib. Raises ValueError."""
    check_numbers(spec)
    check_matplotlib("the figure of a scaling study")
    if not spec.sizes:
        raise ValueError("sizes is empty: name at least one, such as {small: {model.hidden_size: 64}}")
    for name, values in (("token_counts", spec.token_counts), ("seeds", spec.seeds)):
        if not values or len(set(values)) != len(values):
            raise ValueError(f"{name}={values} must be at least one whole number, none of them twice")
    objective = base_keys(spec).get("objective", "clm")
    if objective != "clm":
        raise ValueError(
            f"base.objective={objective!r}: the law is of the loss per predicted token of decoders, so it must be 'clm'"
        )
    given = sorted(key for key in base_keys(spec).get("trainer", {}) if key in _SCHEDULE)
    if given:
        raise ValueError(
            f"base.trainer.{given[0]} does not belong here: token_counts, decay_share and decay_type say how long each run is "
            "and how its learning rate goes"
        )


def sizes_of(spec):
    """List of `Variant`, one per size. Raises ValueError for names that are no directory names."""
    keys, found = base_keys(spec), []
    for name, changes in spec.sizes.items():
        if not isinstance(changes, dict):
            raise ValueError(f"sizes.{name}={changes!r} must be a section of dotted keys, such as {{model.hidden_size: 64}}")
        if Path(str(name)).name != str(name) or str(name) in ("", ".", ".."):
            raise ValueError(f"the name {name!r} is no name of a directory")
        changes = flat(changes)
        taken = sorted(key for key in changes if key.removeprefix("trainer.") in _SCHEDULE)
        if taken:
            raise ValueError(f"sizes.{name}: {taken[0]} is decided by token_counts, for all sizes alike")
        found.append(Variant(str(name), changes, None, changed(keys, changes, f"sizes.{name}")))
    return found


def drafts(spec):
    """[(Variant, TrainingSpec)] of the shortest run of each size, checked as far as can be without a tokenizer.

    Raises:
        ValueError: naming the size, for whatever its run would refuse.
    """
    check_study(spec)
    checked = []
    for size in sizes_of(spec):
        try:
            for count in sorted(spec.token_counts):
                draft = training_spec(spec, size, spec.seeds[0], count)
                check_parts(draft)
                check_model_entry(draft)
        except ValueError as error:
            raise ValueError(f"size {size.name!r}: {error}") from None
        checked.append((size, training_spec(spec, size, spec.seeds[0], min(spec.token_counts))))
    return checked


def plan_study(spec, tokenizer, tokenizer_path, texts):
    """List of `StudyRun`: for every seed and size the token counts in ascending order.

    Args:
        tokenizer, tokenizer_path: shared by all runs. texts: fingerprints of the corpus.

    Raises:
        ValueError: for a size that cannot be built, or two sizes with equally many parameters.
    """
    sizes = [size for size, _ in drafts(spec)]
    for size in sizes:
        size.keys["tokenizer"] = {"path": str(tokenizer_path)}
    runs = [_run(spec, size, seed, count, tokenizer, texts) for seed in spec.seeds for size in sizes
            for count in sorted(spec.token_counts)]  # fmt: skip
    named = {}
    for run in runs:
        other = named.setdefault(parameters_of(run, spec.count), run.variant)
        if other != run.variant:
            raise ValueError(f"sizes {other!r} and {run.variant!r} have equally many parameters ({spec.count}); change one")
    return runs


def parameters_of(run, count):
    """N of a run, as `count` asks."""
    return run.total if count == "total" else run.non_embedding


def _run(spec, size, seed, count, tokenizer, texts):
    made = training_spec(spec, size, seed, count)
    config = build_config(size.keys["model"], tokenizer)
    parameters = count_parameters(config)
    steps, decay_start = schedule_of(spec, tokens_per_step(made), count, size)
    tokens = steps * tokens_per_step(made)
    settings = json.loads(json.dumps(stage_settings(made, texts)))
    flops = training_flops(config, made.data.sequence_length) * tokens
    numbers = {"steps": steps, "decay_start": decay_start, "tokens": tokens, "flops": flops}
    parts = {"total": parameters.total, "non_embedding": parameters.non_embedding}
    return StudyRun(size.name, seed, made, settings, **numbers, **parts)


def tokens_per_step(made):
    """Tokens of an optimizer step of a `TrainingSpec`, over all processes and micro-batches."""
    return made.data.sequence_length * rows_per_step(made, training_arguments(made))


def schedule_of(spec, step_tokens, count, size):
    """(steps, step at which the learning rate begins to fall) of a token count; the latter is one that is saved.

    Raises:
        ValueError: where the run is too short for its warm-up and a saved step before the decay.
    """
    trainer = size.keys.get("trainer", {})
    save, warmup = trainer.get("save_steps", DEFAULTS["save_steps"]), trainer.get("warmup_steps", 0)
    if not isinstance(save, int) or save < 1:
        raise ValueError(f"trainer.save_steps={save!r} must be a whole number of steps: runs hand on what is saved there")
    if not isinstance(warmup, int):
        raise ValueError(f"trainer.warmup_steps={warmup!r} must be a whole number, the same for every token count")
    steps = round(count / step_tokens)
    start = round((1 - spec.decay_share) * steps / save) * save
    if not max(warmup, 1) <= start < steps:
        raise ValueError(
            f"token_counts: {count:,} tokens are {steps} steps, of which {start} come before the decay (a multiple of "
            f"trainer.save_steps={save}); that must be at least trainer.warmup_steps={warmup} and less than all of them"
        )
    return steps, start


def training_spec(spec, size, seed, count):
    """The `TrainingSpec` of one run."""
    root, keys = Path(spec.output_dir), dict(size.keys)
    keys["data"] = with_shared_rows(keys.get("data", {}), root)
    place = {"output_dir": str(root / "runs" / size.name / f"seed-{seed}" / f"{count}-tokens"), "seed": seed}
    # a first look for the rows of a step, which the length of the run follows from
    trainer = dict(keys.get("trainer", {}))
    first = build_spec(TrainingSpec, {**keys, "trainer": trainer, **place, "overwrite": spec.overwrite})
    steps, start = schedule_of(spec, tokens_per_step(first), count, size)
    trainer.update(
        max_steps=steps,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": steps - start, "decay_type": spec.decay_type},
        warmup_steps=trainer.get("warmup_steps", 0),
        save_strategy="steps",
        save_total_limit=None,
    )
    return build_spec(TrainingSpec, {**keys, "trainer": trainer, **place, "overwrite": spec.overwrite})
