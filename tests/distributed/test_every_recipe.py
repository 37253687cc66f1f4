"""Every recipe that trains, on two processes: both end with the same result, each file is made once, and what one does
not find ends both.
"""

import copy
from pathlib import Path

import pytest

from hf_variants import jobs
from tests.distributed.tasks import launch
from tests.distributed.tiny_recipes import recipes

# paths of what the first process writes
SAID_BY_THE_FIRST = {"report", "merged", "training"}


def _blind(keys, folder):
    """The same recipe with documents that the first process alone finds, or None for one that reads none."""
    keys = copy.deepcopy(keys)
    keys["output_dir"] += "-blind"
    data = keys.get("base", keys)["data"]
    if "source" not in data:
        return None
    seen = folder / "of-0" / Path(data["source"]).name
    seen.parent.mkdir(exist_ok=True)
    seen.write_bytes(Path(data["source"]).read_bytes())
    data["source"] = str(folder / "OF_RANK" / seen.name)
    return keys


@pytest.mark.slow
def test_every_recipe_runs_on_two_processes(tmp_path):
    tasks = {name: {"recipe": recipe, "spec": keys} for name, (recipe, keys) in recipes(tmp_path).items()}
    assert {task["recipe"] for task in tasks.values()} == set(jobs.RECIPES) - jobs.IN_ONE_PROCESS
    apart = {"spec": {**tasks["pretrain"]["spec"], "output_dir": f"{tmp_path}/OF_RANK"}, "refused": True}
    blind = {name: _blind(task["spec"], tmp_path) for name, task in tasks.items()}
    blind = {name: {**tasks[name], "spec": keys, "refused": True} for name, keys in blind.items() if keys is not None}
    assert tasks.keys() - blind.keys() == {"vision_language"}
    # first, so that the runs behind show that the processes are still in step
    unseen = {f"{name}, unseen": task for name, task in blind.items()}
    first, second = launch({**unseen, **tasks, "apart": apart}, tmp_path)
    for name in unseen:
        assert second[name]["error"].startswith("ValueError") and "of-1" in second[name]["error"], second[name]
        assert first[name]["error"].startswith("RunStopped: process 1 of this launch failed: ValueError"), first[name]
        assert not Path(unseen[name]["spec"]["output_dir"]).exists(), name
    for found in (first, second):
        assert "is not one folder for the whole launch: the processes [1]" in found["apart"]["error"]
    for name in tasks:
        assert first[name]["result"].keys() - SAID_BY_THE_FIRST == second[name]["result"].keys() - SAID_BY_THE_FIRST, name
        assert first[name]["wrapper"] == second[name]["wrapper"] == "DistributedDataParallel", name
