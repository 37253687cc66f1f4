"""Stages: a piece of work that is done once, recognised by its settings when it is run again.

    directory/stage.json   {"name", "fingerprint", "settings", "status": "started" | "finished", "result"}

Notable here: the file is replaced in one step, so a killed process leaves the old one or the new one; a directory that
holds the work of other settings is never overwritten unasked.
"""

import hashlib
import json
import os
import shutil
import time
from contextlib import nullcontext
from pathlib import Path

from .processes import gathered, in_turn, is_writer, print_once, together

STAGE_FILE = "stage.json"
# seconds in which a shared folder shows all machines what one of them wrote
PATIENCE = 30


class Stage:
    """One stage of a run in `directory`, with the plain `settings` (JSON values) that decide its result.

    Settings must name their inputs too (fingerprints of data and of earlier stages), so that a changed input is a
    changed stage.
    """

    def __init__(self, name, directory, settings):
        self.name, self.directory = name, Path(directory)
        self.settings = json.loads(json.dumps(settings, sort_keys=True))
        self.fingerprint = fingerprint_of(self.settings)

    def finished_result(self):
        """The result that an equal, finished stage left here, or None."""
        record = self._read()
        if record and record["fingerprint"] == self.fingerprint and record["status"] == "finished":
            return record["result"]
        return None

    def start(self, overwrite=False, allow_changes=False, fixed=None):
        """Claim the directory.

        Args:
            overwrite: remove what other settings left there.
            allow_changes: go on with what other settings left there.
            fixed: beginnings of dotted keys that going on cannot change; None where the stage cannot be gone on with.

        Returns:
            str: what changed, or "" where nothing did.

        Raises:
            ValueError: naming what changed, with the ways out, when it holds other settings and neither is allowed.
        """
        record, changes = self._read(), ""
        if record and record["fingerprint"] != self.fingerprint:
            changes = describe_changes(record["settings"], self.settings)
            barred = [key for key in changed_keys(record["settings"], self.settings) if key.startswith(fixed or "")]
            if overwrite:
                if is_writer():
                    shutil.rmtree(self.directory)
                changes = ""
            elif barred or not allow_changes:
                raise ValueError(self._refusal(record["name"], changes, barred if allow_changes else None, bool(barred)))
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"directory {str(self.directory)!r} cannot be made ({error.strerror}); name another one"
            ) from error
        self._sweep()
        self._write("started", None)
        return changes

    def _sweep(self):
        """Remove what a killed process was in the middle of writing."""
        if is_writer():
            for path in [*self.directory.glob("*.partial-*"), *self.directory.glob("*/*.partial-*")]:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _refusal(self, name, changes, barred, hopeless):
        text = f"output_dir={str(self.directory)!r} holds the stage {name!r} of other settings ({changes}); "
        text += "give another output_dir"
        if not hopeless:
            text += ", allow_changes=true to go on from its last checkpoint with the new ones"
        if barred:
            text += f" (allow_changes=true cannot change {', '.join(barred[:3])})"
        return f"{text}, or overwrite=true to start afresh"

    def agree(self):
        """The result that the first process finds here, or None; all processes of a launch call it together.

        Raises:
            ValueError: on all of them, where one has other settings than the first: it reads other data or another recipe.
        """
        found = gathered((self.settings, self.finished_result()))
        for rank, (settings, _) in enumerate(found):
            if settings != found[0][0]:
                changes = describe_changes(found[0][0], settings)
                raise ValueError(
                    f"process {rank} of this launch has other settings than the first ({changes}); "
                    "all machines must read the same recipe, data and checkpoints"
                )
        return found[0][1]

    def check_shared(self):
        """Refuse a directory that is not one and the same for all processes of a launch, which call it together.

        Raises:
            ValueError: on all of them.
        """
        until = time.monotonic() + PATIENCE
        while not (seen := self._is_mine()) and time.monotonic() < until:
            time.sleep(0.5)
        blind = [rank for rank, sees in enumerate(gathered(seen)) if not sees]
        if blind:
            raise ValueError(
                f"output_dir={str(self.directory)!r} is not one folder for the whole launch: the processes {blind} do not see "
                f"the {STAGE_FILE} of the first. Its checkpoints are read by all; put it on storage that the machines share"
            )

    def _is_mine(self):
        # listed first: a network file system may remember that a file was not there
        there = self.directory.is_dir() and STAGE_FILE in os.listdir(self.directory)
        record = self._read() if there else None
        return record is not None and record["fingerprint"] == self.fingerprint

    def leave(self):
        """Give a directory up that holds nothing but the record: a refused setting shall not bar the mended one."""
        try:
            if [path.name for path in self.directory.iterdir()] == [STAGE_FILE]:
                (self.directory / STAGE_FILE).unlink(missing_ok=True)
        except FileNotFoundError:
            # another process of the launch was first
            return

    def finish(self, result):
        """Record the result (JSON values) and return it as it will be read back."""
        self._write("finished", result)
        return json.loads(json.dumps(result))

    def _read(self):
        return read_json(self.directory / STAGE_FILE)

    def _write(self, status, result):
        if not is_writer():
            return
        record = {"name": self.name, "fingerprint": self.fingerprint, "status": status}
        write_json(self.directory / STAGE_FILE, {**record, "settings": self.settings, "result": result})


def run_stage(
    name,
    directory,
    settings,
    work,
    overwrite=False,
    announce=print_once,
    arguments=None,
    allow_changes=False,
    fixed=None,
):
    """The result of `work()` (JSON values), or the recorded one where an equal stage is finished in `directory`.

    Args:
        arguments: TrainingArguments of a launch, whose processes claim the directory in turn and end together.
        allow_changes, fixed: as in `Stage.start`.

    Raises:
        ValueError: when the directory holds a stage of other settings and `overwrite` is False; when the processes of a
            launch have other settings or another directory.
    """
    stage = Stage(name, directory, settings)
    result = stage.agree() if arguments else stage.finished_result()
    if result is not None:
        announce(f"{name}: already finished in {directory}, skipped")
        return result
    with in_turn(arguments) if arguments else nullcontext():
        changes = stage.start(overwrite, allow_changes, fixed)
    if arguments:
        stage.check_shared()
    if changes:
        announce(f"{name}: goes on in {directory} with changed settings ({changes})")
    try:
        result = work()
    except ValueError:
        stage.leave()
        raise
    with together() if arguments else nullcontext():
        return stage.finish(result)


def stage_fingerprint(directory):
    """Fingerprint of the stage recorded in a directory, or None where there is no record."""
    record = read_json(Path(directory) / STAGE_FILE)
    return record["fingerprint"] if record else None


def fingerprint_of(settings):
    """Hex digest of JSON values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def describe_changes(old, new, limit=4):
    """The dotted keys in which two nested mappings differ, as `trainer.max_steps: 600 -> 800`."""
    before, after = _flatten(old), _flatten(new)
    changed = changed_keys(old, new)
    shown = [f"{key}: {before.get(key)} -> {after.get(key)}" for key in changed[:limit]]
    return ", ".join(shown + (["..."] if len(changed) > limit else []))


def changed_keys(old, new):
    """The dotted keys, sorted, in which two nested mappings differ."""
    before, after = _flatten(old), _flatten(new)
    return [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]


def read_json(path):
    """The JSON in a file, or None when it is missing or cut short."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def write_json(path, value):
    """Write JSON so that a reader, or a kill at any moment, sees the old file or the new one."""
    path = Path(path)
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(value, indent=2, sort_keys=True) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _flatten(mapping, where=""):
    flat = {}
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            flat.update(_flatten(value, f"{where}{key}."))
        else:
            flat[where + key] = value
    return flat
