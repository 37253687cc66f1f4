"""Writing what a run continues from: a write that fails ends the run in words and leaves nothing that looks finished.

Notable here: each library says "the disk is full" with an exception of its own.
"""

import shutil
from contextlib import contextmanager

from .checkpoints import last_good_checkpoint
from .errors import RunStopped
from .processes import is_writer


@contextmanager
def saving(what, output_dir, partial=None):
    """Turn a failed write into a `RunStopped` that says what the run continues from; `partial` is removed, so that nothing
    looks finished and the room is free again.

    Raises:
        RunStopped: in place of the failed write.
    """
    try:
        yield
    except Exception as error:
        if not is_write_error(error):
            raise
        if partial is not None and is_writer():
            shutil.rmtree(partial, ignore_errors=True)
        good = last_good_checkpoint(output_dir)
        way = f"the last good checkpoint is {good}" if good else "there is no earlier checkpoint"
        reason = " ".join(str(error).split())
        raise RunStopped(f"{what} could not be written ({reason}); {way}. Make room and run the same command again") from error


def is_write_error(error):
    """Whether an exception means that a file could not be written: each library has its own kind."""
    words = ("writ", "space", "quota", "too large", "i/o error")
    if isinstance(error, OSError):
        return True
    named = type(error).__name__ == "SafetensorError" or isinstance(error, RuntimeError)
    return named and not isinstance(error, RunStopped) and any(word in str(error).lower() for word in words)
