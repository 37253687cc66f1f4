"""Making the runs: here, one after another, or by a launcher; each is left alone once it is finished.

Notable here: a run that diverges is a result and not an accident, so the others go on; its reason is kept beside it, and it is
not tried again unless its settings change.
"""

import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import yaml

from ..training.errors import RunStopped
from ..training.pretraining import pretrain
from ..training.processes import is_writer, together
from ..training.stages import STAGE_FILE, describe_changes, fingerprint_of, read_json, write_json

OUTCOME = "outcome.json"


def outcome_of(run):
    """{"status": "finished", "result": ...}, {"status": "diverged", "reason": ...}, {"status": "changed", "reason":
    ...} where the directory holds a run of other settings, or {"status": "waiting"}.
    """
    stage, stopped = read_json(run.directory / STAGE_FILE) or {}, read_json(run.directory / OUTCOME) or {}
    changes = describe_changes(*_then_and_now(run, stage)) if stage else ""
    if changes:
        return {"status": "changed", "reason": changes}
    if stage.get("status") == "finished":
        # a loss that is no number is a divergence, whoever noticed it
        if stage["result"]["eval_loss"] != stage["result"]["eval_loss"]:
            return {"status": "diverged", "reason": "the held-out loss is not a number"}
        return {"status": "finished", "result": stage["result"]}
    if stopped.get("fingerprint") == fingerprint_of(run.settings):
        return {"status": "diverged", "reason": stopped["reason"]}
    return {"status": "waiting"}


def _then_and_now(run, stage):
    """The settings that a directory holds and those of the plan; of a launched run the batch as its recipe gave it, for the
    rows of a step depend on the processes of the launch.
    """
    then, now = dict(stage["settings"]), dict(run.settings)
    if recipe_of(run).is_file():
        launched = yaml.safe_load(recipe_of(run).read_text(encoding="utf-8"))
        then["rows_per_step"], now["rows_per_step"] = _batch(launched["trainer"]), _batch(run.spec.trainer)
    return then, now


def _batch(trainer):
    return [trainer.get("per_device_train_batch_size"), trainer.get("gradient_accumulation_steps")]


def recipe_of(run):
    """Where the recipe of a launched run lies; runs that are made here have none."""
    return run.directory.parent / f"{run.directory.name}.yaml"


def refuse_changed(runs, overwrite):
    """Refuse directories that hold runs of other settings, before any run is made. Raises ValueError."""
    found = [(run, outcome["reason"]) for run in runs if (outcome := outcome_of(run))["status"] == "changed"]
    if found and not overwrite:
        run, reason = found[0]
        raise ValueError(
            f"{len(found)} runs have other settings than those that lie in output_dir, the first {str(run.directory)!r} "
            f"({reason}); give another output_dir, or overwrite=true to make them afresh"
        )


def make_runs(runs, spec, announce):
    """Make the runs that are not finished yet; a second call makes the rest.

    A run whose directory holds other settings is made afresh; `refuse_changed` keeps those out that shall not be.
    """
    if spec.launcher is not None:
        _launch([run for run in runs if outcome_of(run)["status"] in ("waiting", "changed")], spec, announce)
        return
    for number, run in enumerate(runs, start=1):
        announce(f"run {number} of {len(runs)}: {run.variant}, seed {run.seed}")
        make_run(run, announce)
        if not spec.keep_checkpoints:
            remove_checkpoints(run)


def make_run(run, announce):
    """Make one run in this process; a divergence is recorded."""
    if outcome_of(run)["status"] == "diverged":
        announce(f"{run.variant}, seed {run.seed}: diverged before, not tried again")
        return
    if is_writer():
        recipe_of(run).unlink(missing_ok=True)
    try:
        pretrain(run.spec, announce)
    except RunStopped as stop:
        if not is_divergence(stop):
            raise
        record_divergence(run, str(stop))
        announce(f"{run.variant}, seed {run.seed}: diverged: {stop}")


def record_divergence(run, reason):
    """Keep beside a run that it diverged, and with which settings; all processes of a launch call it together."""
    with together():
        if is_writer():
            write_json(run.directory / OUTCOME, {"reason": reason, "fingerprint": fingerprint_of(run.settings)})


def is_divergence(stop):
    """Whether a run stopped for its numbers, and not for a full disk."""
    return "the loss is" in str(stop) or "norm of the gradients is" in str(stop)


def remove_checkpoints(run):
    """Remove the intermediate checkpoints of a run that has ended; its final model stays."""
    if is_writer() and outcome_of(run)["status"] != "waiting":
        for folder in run.directory.glob("checkpoint-*"):
            shutil.rmtree(folder, ignore_errors=True)


def write_recipe(run):
    """Write the run's recipe as YAML beside its directory; returns the path."""
    path = recipe_of(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(yaml.safe_dump(run.spec.to_dict(), sort_keys=False), encoding="utf-8")
    partial.replace(path)
    return path


def launched_command(run, launcher):
    """The words of the command that makes a run.

    Raises:
        ValueError: for a launcher with a place that cannot be filled in.
    """
    places = {"recipe": str(write_recipe(run)), "name": f"{run.variant}-seed-{run.seed}", "python": sys.executable}
    try:
        return [word.format(**places) for word in shlex.split(launcher)]
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"launcher={launcher!r} cannot be filled in: {error}; it may hold {sorted(places)}") from None


def _launch(runs, spec, announce):
    commands = [launched_command(run, spec.launcher) for run in runs]

    def start(run, words):
        announce(f"{run.variant}, seed {run.seed}: {' '.join(words)}")
        log = run.directory.parent / f"{run.directory.name}.log"
        with log.open("a", encoding="utf-8") as stream:
            code = subprocess.run(words, stdout=stream, stderr=subprocess.STDOUT).returncode
        if code:
            _record_failure(run, log, code, announce)
        elif not spec.keep_checkpoints:
            remove_checkpoints(run)

    # the first alone: it packs the data that the others read
    for run, words in list(zip(runs, commands, strict=True))[:1]:
        start(run, words)
    with ThreadPoolExecutor(spec.parallel) as pool:
        for job in [pool.submit(start, run, words) for run, words in zip(runs[1:], commands[1:], strict=True)]:
            job.result()


def _record_failure(run, log, code, announce):
    last = next(
        (line for line in reversed(log.read_text(encoding="utf-8", errors="replace").splitlines()) if line.strip()), ""
    )
    if is_divergence(last):
        record_divergence(run, last)
    announce(f"{run.variant}, seed {run.seed}: ended with code {code}: {last} (all of it in {log})")
