"""Which of several processes writes files: the first one of `torchrun` and `accelerate launch`, or the only one."""

import os
from contextlib import contextmanager


def is_writer():
    """Whether this process writes records, tokenizers and models. Known before torch.distributed is set up."""
    return os.environ.get("RANK", "0") == "0"


def print_once(text):
    """Print a line of progress, from the first process alone."""
    if is_writer():
        print(text, flush=True)


@contextmanager
def in_turn(arguments):
    """Do work on files in turn: the first process of the launch, then the first of every machine, then the others.

    The machines may share the folder or not: whoever finds the files of an earlier process reads them.

    Args:
        arguments: the TrainingArguments of the launch; accelerate alone takes one on CPUs for single processes.
    """
    with arguments.main_process_first(local=False), arguments.main_process_first(local=True):
        yield
