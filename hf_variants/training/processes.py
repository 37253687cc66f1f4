"""Which of several processes writes files: the first one of `torchrun` and `accelerate launch`, or the only one."""

import os


def is_writer():
    """Whether this process writes records, tokenizers and models. Known before torch.distributed is set up."""
    return os.environ.get("RANK", "0") == "0"


def print_once(text):
    """Print a line of progress, from the first process alone."""
    if is_writer():
        print(text, flush=True)
