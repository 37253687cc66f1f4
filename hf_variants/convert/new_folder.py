"""A folder that appears whole or not at all."""

import os
import shutil
import signal
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


def check_free(directory):
    """Raise ValueError where `directory` cannot become a new folder."""
    directory = Path(directory)
    try:
        here, is_link = directory.absolute().resolve() == Path.cwd(), directory.is_symlink()
    except (OSError, ValueError) as error:
        raise ValueError(f"{str(directory)!r} is no path of a folder: {error}") from error
    if here:
        raise ValueError(f"{str(directory)!r} is the folder that this runs in; name another one to write")
    if is_link:
        raise ValueError(f"{str(directory)!r} is a link; name the folder to write itself, {str(directory.resolve())!r}")
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{str(directory)!r} is a file; name a folder to write")
    if directory.is_dir() and any(directory.iterdir()):
        raise ValueError(f"{str(directory)!r} is not empty; name another folder, or empty it")


def check_space(directory, needed):
    """Raise ValueError where the disk of `directory` has less than `needed` bytes free."""
    parent = next(path for path in Path(directory).absolute().parents if path.is_dir())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise ValueError(
            f"{str(directory)!r} needs {needed / 1e9:.2f} GB and its disk has {free / 1e9:.2f} GB free; free some, or name a "
            "folder on another disk"
        )


@contextmanager
def new_folder(directory):
    """Yields a hidden folder beside `directory` that takes its place at the end; on any failure it is removed.

    Raises:
        ValueError: `directory` is in the way; writing failed, for want of space for instance; the rest of an earlier run that
            could not be removed is named.
    """
    directory = Path(directory)
    check_free(directory)
    absent = [parent for parent in directory.absolute().parents if not parent.exists()]
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{_prefix(directory)}", dir=directory.parent))
    except OSError as error:
        _remove_empty(absent)
        raise ValueError(f"{str(directory)!r} cannot be written: {error}") from error
    done = False
    try:
        with _terminated_as_interrupted():
            yield partial
            partial.chmod(0o777 & ~_umask())
            os.replace(partial, directory)
            done = True
    except (OSError, SafetensorError) as error:
        raise ValueError(f"writing {str(directory)!r} failed: {error}; nothing was left there") from error
    finally:
        if not done:
            shutil.rmtree(partial, ignore_errors=True)
            _remove_empty(absent)


def _remove_empty(folders):
    """Remove folders that were made on the way, the innermost first, as far as nobody else has put something there."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def left_behind(directory):
    """Hidden folders of runs that were killed before they could clean up after themselves."""
    directory = Path(directory)
    if not directory.parent.is_dir():
        return []
    return sorted(path for path in directory.parent.iterdir() if path.name.startswith(_prefix(directory)))


def _prefix(directory):
    return f".{directory.name}.partial-"


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def _terminated_as_interrupted():
    """A polite kill cleans up like Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
