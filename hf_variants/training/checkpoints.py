"""Finding the last checkpoint that can be resumed, whatever a killed process left behind.

Notable here: Trainer writes trainer_state.json last, so its presence means that the rest was written; sizes are
checked beside it, because a machine that goes down can keep a name and lose its bytes.
"""

import json
import logging
import re
import struct
import zipfile
from pathlib import Path

from .processes import is_writer
from .sharding import OPTIMIZER_FOLDER, shards_of

logger = logging.getLogger(__name__)

_NAME = re.compile(r"^checkpoint-(\d+)$")
# Weights under FSDP are a folder of distributed files that only torch's own reader can judge.
_SHARDED_FOLDERS = ("pytorch_model_fsdp_0",)


def last_good_checkpoint(output_dir):
    """Path (str) of the checkpoint with the most steps that is whole, or None.

    Broken ones that are newer are moved aside to `broken-checkpoint-N`, with a warning, so that training can write
    that name again.
    """
    for path in sorted(_checkpoints(output_dir), key=_steps, reverse=True):
        reason = why_broken(path)
        if reason is None:
            return str(path)
        if is_writer():
            _move_aside(path, reason)
    return None


def why_broken(path):
    """The reason (str) why a Trainer checkpoint cannot be resumed, or None when it is whole."""
    path = Path(path)
    try:
        state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "trainer_state.json is missing (the save was interrupted)"
    except json.JSONDecodeError:
        return "trainer_state.json is cut short"
    if state.get("global_step") != _steps(path):
        return f"trainer_state.json is of step {state.get('global_step')}"
    return _weights_problem(path) or _archives_problem(path)


def why_broken_safetensors(file):
    """The reason why a .safetensors file is not whole, or None: its header says how long it must be."""
    size = Path(file).stat().st_size
    with open(file, "rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            return f"{Path(file).name} is cut short"
        length = struct.unpack("<Q", prefix)[0]
        if 8 + length > size:
            return f"{Path(file).name} is cut short"
        try:
            header = json.loads(stream.read(length))
        except ValueError:
            return f"{Path(file).name} has a damaged header"
    end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    return None if size == 8 + length + end else f"{Path(file).name} is cut short"


def _weights_problem(path):
    shards = shards_of(path)
    if shards:
        return _shards_problem(path, shards)
    if any((path / folder).is_dir() for folder in _SHARDED_FOLDERS):
        return None
    index = path / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (json.JSONDecodeError, KeyError):
            return "model.safetensors.index.json is damaged"
    elif (path / "adapter_model.safetensors").is_file():
        names = {"adapter_model.safetensors"}
    for name in sorted(names):
        if not (path / name).is_file():
            return f"{name} is missing"
        reason = why_broken_safetensors(path / name)
        if reason:
            return reason
    return None


def _shards_problem(path, shards):
    # torch writes .metadata last
    if not (path / OPTIMIZER_FOLDER / ".metadata").is_file():
        return f"{OPTIMIZER_FOLDER}/.metadata is missing"
    processes = len(list((path).glob("rng_state*.pth")))
    if len(shards) != processes:
        return f"{len(shards)} of {processes} shards are there"
    return next(filter(None, map(why_broken_safetensors, shards)), None)


def _archives_problem(path):
    """torch.save writes zip archives whose directory stands at the end, so a cut file is no archive."""
    for pattern in ("optimizer.pt", "scheduler.pt", "rng_state*.pth"):
        files = list(path.glob(pattern))
        if not files and pattern == "scheduler.pt":
            return "scheduler.pt is missing"
        for file in files:
            if not zipfile.is_zipfile(file):
                return f"{file.name} is cut short"
    return None


def _checkpoints(output_dir):
    directory = Path(output_dir)
    if not directory.is_dir():
        return []
    return [path for path in directory.iterdir() if path.is_dir() and _NAME.match(path.name)]


def _steps(path):
    return int(_NAME.match(path.name).group(1))


def _move_aside(path, reason):
    target, number = path.with_name(f"broken-{path.name}"), 1
    while target.exists():
        number += 1
        target = path.with_name(f"broken-{path.name}.{number}")
    path.rename(target)
    logger.warning("%s cannot be resumed: %s; moved to %s", path, reason, target.name)
