"""Runs `ranks.py` on two gloo processes."""

import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


def launch(directory, job):
    """What rank 0 of the named job saved."""
    result = Path(directory) / f"{job}.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.training_model.ranks", job, str(result), str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(result, weights_only=True)
