"""Longer runs start from the checkpoint of a shorter one, where their learning rates part.

Notable here: a checkpoint is copied under another name and renamed, so that a killed copy is never taken for one.
"""

import os
import shutil

from ..training.checkpoints import last_good_checkpoint, why_broken
from ..training.processes import gathered, is_writer, together


def hand_on(run, shorter):
    """Put the last checkpoint before the decay of a `shorter` run into the directory of a longer one that has none; the first
    process of a launch does it, and all call it together.

    Args:
        run: a `StudyRun`. shorter: the runs of its size and seed with fewer tokens.

    Returns:
        The step that `run` starts from, or None where it starts from nothing or has begun already.
    """
    with together():
        step = _copied(run, shorter) if is_writer() else None
    return gathered(step)[0]


def _copied(run, shorter):
    if last_good_checkpoint(run.directory) is not None:
        return None
    for other in sorted(shorter, key=lambda one: one.decay_start, reverse=True):
        source = handed_checkpoint(other)
        if source.is_dir() and why_broken(source) is None:
            run.directory.mkdir(parents=True, exist_ok=True)
            partial = run.directory / f"{source.name}.partial-{os.getpid()}"
            shutil.copytree(source, partial, dirs_exist_ok=True)
            partial.rename(run.directory / source.name)
            return other.decay_start
    return None


def handed_checkpoint(run):
    """Path of the checkpoint that a run leaves to longer ones."""
    return run.directory / f"checkpoint-{run.decay_start}"


def drop_other_checkpoints(run):
    """Remove the checkpoints of a finished run, save the one that longer runs may start from."""
    if not is_writer():
        return
    for folder in run.directory.glob("checkpoint-*"):
        if folder != handed_checkpoint(run):
            shutil.rmtree(folder, ignore_errors=True)
