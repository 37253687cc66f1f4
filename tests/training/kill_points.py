"""python -m tests.training.kill_points TEXT DIRECTORY: kills a run at many of its file operations, each in a fork of its own.

Every open for writing, rename, removal and new folder below the run's directory is one point; the run is killed there by
SIGKILL, continued by the same call, and its weights compared with those of a run that nobody killed.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from hf_variants.training import pretrain
from tests.training.runs import quiet, spec_of

POINTS = 9
EVENTS = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "shutil.copyfile")


class Points:
    """An audit hook that counts the file operations below a directory and kills the process at number `kill_at`."""

    def __init__(self, directory, kill_at=None):
        self.directory, self.kill_at, self.count = str(directory), kill_at, 0

    def __call__(self, event, arguments):
        if event == "open":
            path, mode, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not writes:
                return
        elif event in EVENTS:
            path = arguments[0]
        else:
            return
        if not str(path).startswith(self.directory):
            return
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def in_a_fork(work):
    """(signal that ended it, or 0; what it returned, as JSON)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    answer = b""
    while part := os.read(reading, 65536):
        answer += part
    os.close(reading)
    status = os.waitpid(child, 0)[1]
    return (os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0), (json.loads(answer) if answer else None)


def run(text, directory, kill_at=None):
    points = Points(directory, kill_at)
    sys.addaudithook(points)
    steps = {"max_steps": 4, "save_steps": 2, "eval_steps": 4, "save_total_limit": 1}
    result = pretrain(spec_of(text, directory, trainer=steps), quiet)
    return {"points": points.count, "loss": result["eval_loss"]}


def main(text, root):
    root = Path(root)
    _, whole = in_a_fork(lambda: run(text, root / "whole"))
    expected = load_file(root / "whole" / "model.safetensors")
    killed, tried = 0, sorted({1 + index * (whole["points"] - 1) // (POINTS - 1) for index in range(POINTS)})
    for point in tried:
        directory = root / f"killed-{point}"
        ended_by, _ = in_a_fork(lambda: run(text, directory, point))  # noqa: B023 - called at once
        killed += ended_by == signal.SIGKILL
        ended_by, again = in_a_fork(lambda: run(text, directory))  # noqa: B023 - called at once
        assert ended_by == 0 and again["loss"] == whole["loss"], (point, ended_by, again, whole)
        found = load_file(directory / "model.safetensors")
        assert all(torch.equal(found[name], expected[name]) for name in expected), point
        left = [str(path) for path in directory.rglob("*partial-*")]
        assert not left, (point, left)
    print(json.dumps({"killed": killed, "tried": len(tried), "points": whole["points"]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
