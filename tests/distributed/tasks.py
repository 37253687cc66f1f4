"""What each of two processes runs: torchrun ... -m tests.distributed.tasks DIRECTORY.

DIRECTORY/tasks.json names runs, in their order, of which the first that fails is the last: {"recipe": a job (without:
pretrain), "spec": its keys, "last": the step after which it is interrupted (null: never), "then": the keys that it goes on
with, "tensor": whether accelerate is made to believe in accelerators, "refused": whether an error is what is expected}. In a
path OF_RANK is another word for each process. Every process writes results-RANK.json, in which errors are texts.
"""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import torch.distributed as dist
from transformers import TrainerCallback

from hf_variants import jobs
from hf_variants.training import build_spec, stages
from hf_variants.training import trainer as trainers
from tests.distributed.recipe import believe_in_accelerators

ROOT = Path(__file__).parents[2]


class Interrupted(Exception):
    pass


class Watch(TrainerCallback):
    """What the trainer made last wraps its model in, and what the weights are."""

    last, seen, trainer = None, {}, None

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == Watch.last:
            raise Interrupted
        kinds = {type(weight).__name__ for weight in model.parameters()}
        wrapper = type(Watch.trainer.model_wrapped).__name__
        Watch.seen = {"class": type(model).__name__, "parameters": sorted(kinds), "wrapper": wrapper}


def watch():
    original = trainers.VariantsTrainer.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        Watch.trainer = self
        self.add_callback(Watch)

    trainers.VariantsTrainer.__init__ = init


def run(recipe, mapping, last=None):
    lines, Watch.last, Watch.seen = [], last, {}
    try:
        result = getattr(jobs, recipe)(build_spec(getattr(jobs, jobs.RECIPES[recipe]), mapping), lines.append)
    except Interrupted:
        return None
    return {"result": result, "lines": lines, **Watch.seen}


def main(directory):
    directory = Path(directory)
    watch()
    results, believing, failed = {}, False, False
    stages.PATIENCE = 1
    tasks = (directory / "tasks.json").read_text().replace("OF_RANK", f"of-{os.environ['RANK']}")
    for name, task in json.loads(tasks).items():
        if task.get("tensor") and not believing:
            believe_in_accelerators()
            believing = True
        print(f"task {name}", flush=True)
        recipe, last = task.get("recipe", "pretrain"), task.get("last")
        try:
            if last is not None:
                assert run(recipe, task["spec"], last) is None
            results[name] = run(recipe, task.get("then", task["spec"]))
        except Exception as error:
            traceback.print_exc()
            results[name] = {"error": f"{type(error).__name__}: {error}"[:900]}
            if not task.get("refused"):
                # the other process may wait for this one
                failed = True
                break
    (directory / f"results-{os.environ['RANK']}.json").write_text(json.dumps(results))
    if dist.is_initialized() and not failed:
        dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(failed))  # gloo's threads now and then abort the interpreter on its way out


def launch(tasks, directory, processes=2, timeout=400):
    """Run tasks in so many processes; returns what each found, in the order of their ranks."""
    directory = Path(directory)
    (directory / "tasks.json").write_text(json.dumps(tasks))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["-m", "tests.distributed.tasks", str(directory)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    with (directory / "output.txt").open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            code = process.wait(timeout)
        finally:
            # on a term the launcher ends its processes too
            process.terminate()
    assert code == 0, (directory / "output.txt").read_text()[-4000:]
    return [json.loads((directory / f"results-{rank}.json").read_text()) for rank in range(processes)]


if __name__ == "__main__":
    main(*sys.argv[1:])
