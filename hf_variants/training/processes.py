"""The processes of a launch (`torchrun`, `accelerate launch`): which of them writes files, in what order, and what they tell
each other.

Notable here: every function does nothing, or what a single process would, where there is only one.
"""

import os
from contextlib import contextmanager, suppress

from .errors import RunStopped


def is_writer():
    """Whether this process writes records, tokenizers and models. Known before torch.distributed is set up."""
    return os.environ.get("RANK", "0") == "0"


def process_count():
    """Number of processes of the launch. Known before torch.distributed is set up."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def refuse_several_processes(what):
    """Raise a ValueError where a launch has several processes for `what` works in one (every one would do the same)."""
    if process_count() > 1:
        raise ValueError(f"{what} works in one process, and this launch has {process_count()}; start it with python alone")


def gathered(value):
    """The values (picklable) of all processes, in the order of their ranks; all processes call it together."""
    if not _connected():
        return [value]
    from torch import distributed

    values = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


@contextmanager
def together():
    """Leave a block with all processes of the launch, which enter it together: what the first one wrote in it can be read
    behind it, and an error of one is an error of all, so that none waits for one that has gone.

    Inside, processes neither wait for each other nor compute together.

    Raises:
        RunStopped: where another process failed, with its reason; a process that failed keeps its own error.
    """
    try:
        yield
    except Exception as error:
        # an error of the connection shall not hide this one
        with suppress(RuntimeError):
            gathered(f"{type(error).__name__}: {error}")
        raise
    for rank, failure in enumerate(gathered(None)):
        if failure is not None:
            raise RunStopped(f"process {rank} of this launch failed: {failure}")


def _connected():
    """Whether there are several processes, which are connected now at the latest."""
    if process_count() == 1:
        return False
    import torch
    from accelerate import PartialState

    if not torch.distributed.is_initialized():
        PartialState(cpu=not torch.accelerator.is_available())
    return True


def print_once(text):
    """Print a line of progress, from the first process alone."""
    if is_writer():
        print(text, flush=True)


@contextmanager
def in_turn(arguments):
    """Do work on files in turn: the first process of the launch, then the first of every machine, then the others.

    The machines may share the folder or not: whoever finds the files of an earlier process reads them. An error of one is an
    error of all (`together`).

    Args:
        arguments: the TrainingArguments of the launch; accelerate alone takes one on CPUs for single processes.
    """
    with together(), arguments.main_process_first(local=False), arguments.main_process_first(local=True):
        yield
