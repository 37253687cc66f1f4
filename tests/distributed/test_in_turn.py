"""Files that several processes need: the order in which those of a launch make them."""

import threading
from types import SimpleNamespace

import pytest
from transformers import TrainingArguments, training_args

from hf_variants.training.processes import in_turn


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
