"""Files that several processes need: the order in which those of a launch make them, and that all see the same ones."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from transformers import TrainingArguments, training_args

from hf_variants import jobs
from hf_variants.training import build_spec, processes, stages
from hf_variants.training.errors import RunStopped
from hf_variants.training.processes import gathered, in_turn, is_writer, refuse_several_processes, together


def _launch(machines, devices, monkeypatch, work):
    """Threads in place of processes: `work(rank)` in each, with the barriers of a launch."""
    barrier = threading.Barrier(machines * devices, timeout=10)
    monkeypatch.setattr(training_args.dist, "barrier", barrier.wait)
    failures = []

    def process(rank):
        state = SimpleNamespace(is_main_process=rank == 0, is_local_main_process=rank % devices == 0)
        arguments = SimpleNamespace(world_size=machines * devices, distributed_state=state, process_index=rank)
        arguments.main_process_first = TrainingArguments.main_process_first.__get__(arguments)
        try:
            with in_turn(arguments):
                work(rank)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in reversed(range(machines * devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    return failures


@pytest.mark.parametrize("machines, devices", [(1, 2), (2, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("shared", [True, False])
def test_each_folder_is_made_once(machines, devices, shared, monkeypatch):
    made, pause = [], threading.Event()

    def work(rank):
        folder = 0 if shared else rank // devices
        if folder not in made:
            pause.wait(0.05)
            made.append(folder)

    assert not _launch(machines, devices, monkeypatch, work)
    assert sorted(made) == list(range(1 if shared else machines))


@pytest.mark.parametrize("machines, devices", [(2, 1), (2, 2)])
def test_the_others_go_on_after_an_error(machines, devices, monkeypatch):
    came = []

    def work(rank):
        came.append(rank)
        if rank == 0:
            raise ValueError("no space left")

    failures = _launch(machines, devices, monkeypatch, work)
    assert [str(error) for error in failures] == ["no space left"] and sorted(came) == list(range(machines * devices))


def _stage_on_two_machines(folders, settings, monkeypatch, work=dict, failing=None):
    """What `run_stage` gives, or raises, in two processes with a folder and settings each.

    Args:
        failing: (method of `Stage`, number of the process in which it cannot write).
    """
    barrier, told, rank = threading.Barrier(2, timeout=10), {}, threading.local()

    def gather(value):
        told[rank.number] = value
        barrier.wait()
        values = [told[0], told[1]]
        barrier.wait()
        return values

    @contextmanager
    def first_first(arguments):
        with together():
            if rank.number == 1:
                barrier.wait()
            try:
                yield
            finally:
                if rank.number == 0:
                    barrier.wait()

    monkeypatch.setattr(stages, "in_turn", first_first)
    for module in (processes, stages):
        monkeypatch.setattr(module, "gathered", gather)
    monkeypatch.setattr(stages, "is_writer", lambda: rank.number == 0)
    monkeypatch.setattr(stages, "PATIENCE", 0.2)
    if failing is not None:
        monkeypatch.setattr(stages.Stage, failing[0], _failing_in(failing[1], getattr(stages.Stage, failing[0]), rank))
    outcomes = [None, None]

    def process(number):
        rank.number = number
        try:
            outcomes[number] = stages.run_stage("fit", folders[number], settings[number], work, arguments=object())
        except (ValueError, OSError, RunStopped) as error:
            outcomes[number] = str(error)

    threads = [threading.Thread(target=process, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    return outcomes


def _failing_in(number, method, rank):
    def failing(*args, **kwargs):
        if rank.number == number:
            raise OSError("no space left")
        return method(*args, **kwargs)

    return failing


@pytest.mark.parametrize("method, number", [("start", 0), ("start", 1), ("finish", 0), ("finish", 1)])
def test_an_error_of_one_ends_the_stage_of_both(tmp_path, monkeypatch, method, number):
    found = _stage_on_two_machines([tmp_path / "out"] * 2, [{"seed": 0}] * 2, monkeypatch, failing=(method, number))
    assert found[number] == "no space left"
    assert found[1 - number] == f"process {number} of this launch failed: OSError: no space left"


def test_machines_that_share_the_folder_run_and_skip_together(tmp_path, monkeypatch):
    calls = []
    for _ in range(2):
        found = _stage_on_two_machines(
            [tmp_path / "out"] * 2, [{"seed": 0}] * 2, monkeypatch, lambda: calls.append(1) or {"loss": 1.0}
        )
        assert found == [{"loss": 1.0}] * 2
    assert len(calls) == 2


def test_machines_without_a_shared_folder_are_refused(tmp_path, monkeypatch):
    calls = []
    found = _stage_on_two_machines(
        [tmp_path / "here", tmp_path / "there"], [{"seed": 0}] * 2, monkeypatch, lambda: calls.append(1)
    )
    assert all("is not one folder for the whole launch: the processes [1] do not see" in text for text in found)
    assert not calls


def test_machines_that_read_other_data_are_refused(tmp_path, monkeypatch):
    settings = [{"texts": {"train": "aa"}}, {"texts": {"train": "bb"}}]
    found = _stage_on_two_machines([tmp_path / "out"] * 2, settings, monkeypatch)
    assert all("process 1 of this launch has other settings than the first (texts.train: aa -> bb)" in text for text in found)
    assert not (tmp_path / "out").exists()


def test_a_single_process_asks_nobody(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    assert gathered({"a": 1}) == [{"a": 1}] and is_writer()
    with together():
        pass
    with pytest.raises(KeyError, match="own"), together():
        raise KeyError("own")
    refuse_several_processes("evaluate")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="evaluate works in one process, and this launch has 2"):
        refuse_several_processes("evaluate")


@pytest.mark.parametrize("recipe", sorted(jobs.IN_ONE_PROCESS))
def test_recipes_of_one_process_refuse_several(recipe, monkeypatch):
    """Before a file is read: two processes would write the same one."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    keys = {"quickstart": {"output": "out"}, "generate": {"model_path": "absent", "prompts": ["x"]}}
    paths = {"model_path": "absent"} | ({"output_dir": "out"} if recipe == "quantize" else {})
    spec = build_spec(getattr(jobs, jobs.RECIPES[recipe]), keys.get(recipe, paths))
    with pytest.raises(ValueError, match=f"{recipe} works in one process"):
        getattr(jobs, recipe)(spec)
