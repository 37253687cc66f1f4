"""What each of two processes runs: torchrun ... -m tests.distributed.sharded_recipe DIRECTORY.

DIRECTORY/tasks.json names specs (as dicts) with the step after which they are interrupted, or null, and optionally a spec to
go on with. Rank 0 writes results.json.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import torch.distributed as dist
from transformers import TrainerCallback

from hf_variants.training import TrainingSpec, build_spec, pretrain
from hf_variants.training import trainer as trainers
from tests.distributed.recipe import believe_in_accelerators


class Interrupted(Exception):
    pass


class Watch(TrainerCallback):
    last, seen = None, {}

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == Watch.last:
            raise Interrupted
        kinds = {type(weight).__name__ for weight in model.parameters()}
        Watch.seen = {"class": type(model).__name__, "parameters": sorted(kinds)}


def watch():
    original = trainers.VariantsTrainer.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.add_callback(Watch)

    trainers.VariantsTrainer.__init__ = init


def run(mapping, last=None):
    lines, Watch.last = [], last
    try:
        result = pretrain(build_spec(TrainingSpec, mapping), lines.append)
    except Interrupted:
        return None
    return {"result": result, "lines": lines, **Watch.seen}


def main(directory):
    directory = Path(directory)
    watch()
    results, believing = {}, False
    for name, task in json.loads((directory / "tasks.json").read_text()).items():
        if task["spec"]["distributed"].get("tp_size", 1) > 1 and not believing:
            believe_in_accelerators()
            believing = True
        try:
            if task["last"] is not None:
                assert run(task["spec"], task["last"]) is None
            results[name] = run(task.get("then", task["spec"]))
        except Exception as error:
            traceback.print_exc()
            results[name] = {"error": f"{type(error).__name__}: {error}"[:900]}
    if dist.get_rank() == 0:
        (directory / "results.json").write_text(json.dumps(results))
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads now and then abort the interpreter on its way out


if __name__ == "__main__":
    main(*sys.argv[1:])
