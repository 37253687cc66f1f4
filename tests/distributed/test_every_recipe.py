"""Every recipe that trains, on two processes: both end with the same result, and each file is made once."""

import pytest

from hf_variants import jobs
from tests.distributed.tasks import launch
from tests.distributed.tiny_recipes import recipes

# paths of what the first process writes
SAID_BY_THE_FIRST = {"report", "merged", "training"}


@pytest.mark.slow
def test_every_recipe_runs_on_two_processes(tmp_path):
    tasks = {name: {"recipe": recipe, "spec": keys} for name, (recipe, keys) in recipes(tmp_path).items()}
    assert {task["recipe"] for task in tasks.values()} == set(jobs.RECIPES) - jobs.IN_ONE_PROCESS
    apart = {"spec": {**tasks["pretrain"]["spec"], "output_dir": f"{tmp_path}/OF_RANK"}, "refused": True}
    first, second = launch({**tasks, "apart": apart}, tmp_path)
    for found in (first, second):
        assert "is not one folder for the whole launch: the processes [1]" in found["apart"]["error"]
    for name in tasks:
        assert first[name]["result"].keys() - SAID_BY_THE_FIRST == second[name]["result"].keys() - SAID_BY_THE_FIRST, name
        assert first[name]["wrapper"] == second[name]["wrapper"] == "DistributedDataParallel", name
