"""From a recipe to runs: what each variant costs, what is adjusted so that all cost the same, and a pretraining spec per seed.

Notable here: every spec is checked before the first run starts, so that no night is lost to the last variant's typing error.
"""

import copy
import json
from dataclasses import dataclass
from pathlib import Path

from ..training.arguments import training_arguments
from ..training.bounds import check_numbers
from ..training.models import build_config, check_model_entry
from ..training.pretraining import check_parts, rows_per_step, stage_settings
from ..training.processes import refuse_several_processes
from ..training.spec_parsing import build_spec
from ..training.specs import TrainingSpec
from .matching import MEASURED, check_match, costs, match_key, matched_steps, matched_width
from .variants import Variant, changed, variants_of


@dataclass
class PlannedRun:
    """One run: a variant with a seed."""

    variant: str
    seed: int
    spec: TrainingSpec
    settings: dict  # by which pretraining recognises it

    @property
    def directory(self):
        return Path(self.spec.output_dir)


@dataclass
class Plan:
    """Variants with their costs, and their runs in the order in which they are made: all variants of a seed, then the next."""

    variants: list
    costs: dict
    runs: list


def check_spec(spec):
    """Refuse impossible numbers of an `AblateSpec`. Raises ValueError."""
    check_numbers(spec)
    if not spec.seeds or len(set(spec.seeds)) != len(spec.seeds):
        raise ValueError(f"seeds={spec.seeds} must be at least one whole number, none of them twice")
    if spec.launcher is not None and "{recipe}" not in spec.launcher:
        raise ValueError(f"launcher={spec.launcher!r} must hold {{recipe}}, the place of a run's YAML file")
    if spec.launcher is not None:
        refuse_several_processes(f"launcher={spec.launcher!r} starts the runs as processes of their own, so that the ablation")
    if spec.launcher is None and spec.parallel > 1:
        raise ValueError(f"parallel={spec.parallel} needs a launcher; without one the runs are made here, one after another")


def drafts(spec):
    """[(Variant, TrainingSpec)] of the first seed, each checked as far as it can be without a tokenizer.

    Raises:
        ValueError: as `check_spec`, and naming the variant, for whatever its run would refuse.
    """
    check_spec(spec)
    checked = []
    for variant in variants_of(spec):
        try:
            draft = training_spec(spec, variant, spec.seeds[0])
            training_arguments(draft)
            check_parts(draft)
            check_model_entry(draft)
        except ValueError as error:
            raise ValueError(f"variant {variant.name!r}: {error}") from None
        if draft.objective == "span_corruption":
            raise ValueError(
                f"variant {variant.name!r}: objective='span_corruption' cannot be ablated yet, for the budgets that are made "
                "equal are those of one stack; choose 'clm' or 'mlm'"
            )
        if draft.trainer.get("max_steps", -1) < 1:
            raise ValueError("base.trainer.max_steps is missing; an ablation needs the number of optimizer steps")
        checked.append((variant, draft))
    return checked


def plan(spec, tokenizer, tokenizer_path, texts):
    """The `Plan` of an `AblateSpec` for a tokenizer and texts (fingerprints of the corpus) that all runs share.

    Raises:
        ValueError: for a variant that cannot be built, or matched within the tolerance.
    """
    variants, found, target = [], {}, None
    for variant, draft in drafts(spec):
        variant.keys["tokenizer"] = {"path": str(tokenizer_path)}
        now = _costs(variant, draft, tokenizer)
        if target is None:
            target = now
        else:
            variant, now = _match(variant, draft, now, target, spec, tokenizer)
        variants.append(variant)
        found[variant.name] = now
    runs = [_run(spec, variant, seed, texts) for seed in spec.seeds for variant in variants]
    return Plan(variants, found, runs)


def _run(spec, variant, seed, texts):
    made = training_spec(spec, variant, seed)
    return PlannedRun(variant.name, seed, made, json.loads(json.dumps(stage_settings(made, texts))))


def training_spec(spec, variant, seed):
    """The `TrainingSpec` of one run."""
    root, keys = Path(spec.output_dir), copy.deepcopy(variant.keys)
    keys["data"] = with_shared_rows(keys.get("data", {}), root)
    place = {"output_dir": str(run_directory(root, variant.name, seed)), "seed": seed, "overwrite": spec.overwrite}
    return build_spec(TrainingSpec, {**keys, **place})


def with_shared_rows(data, root):
    """A data section whose packed rows lie where all runs under `root` find them. Raises ValueError for another place."""
    if data.get("cache_dir") is not None:
        raise ValueError(
            f"data.cache_dir={data['cache_dir']!r} does not belong here: all runs share the rows in output_dir/data"
        )
    return {**data, "cache_dir": str(Path(root) / "data")}


def run_directory(root, variant, seed):
    """Where the run of a variant (its name) with a seed lies in the ablation of `root`."""
    return Path(root) / "runs" / variant / f"seed-{seed}"


def _costs(variant, draft, tokenizer):
    rows = rows_per_step(draft, training_arguments(draft))
    try:
        config = build_config(variant.keys["model"], tokenizer)
    except ValueError as error:
        raise ValueError(f"variant {variant.name!r}: {error}") from None
    return costs(config, draft.data.sequence_length, rows, variant.keys["trainer"]["max_steps"])


def _match(variant, draft, now, target, spec, tokenizer):
    """(variant, costs) at the budget of the base."""
    key = match_key(spec, build_config(variant.keys["model"], tokenizer))
    if key is None or getattr(now, MEASURED[spec.match]) == getattr(target, MEASURED[spec.match]):
        return variant, now
    if set(variant.changes) == {key}:
        raise ValueError(
            f"variant {variant.name!r} changes nothing but {key}, which match={spec.match!r} adjusts; name another by match_by"
        )

    def with_value(value):
        keys = changed(variant.keys, {key: value}, "match_by")
        return Variant(variant.name, variant.changes, variant.against, keys, {key: value})

    def measure(value):
        return getattr(_costs(with_value(value), draft, tokenizer), MEASURED[spec.match])

    goal = getattr(target, MEASURED[spec.match])
    try:
        value = matched_steps(now, goal) if spec.match == "flops" else matched_width(measure, goal, spec.match_multiple)
    except ValueError as error:
        raise ValueError(f"variant {variant.name!r} cannot be matched by {key}: {error}") from None
    check_match(variant.name, key, value, measure(value), goal, spec)
    section, name = key.split(".")
    if variant.keys[section].get(name) == value:
        return variant, now
    adjusted = with_value(value)
    return adjusted, _costs(adjusted, draft, tokenizer)
