"""Whether a file or folder that a command is asked to write can be written, said before anything is computed for it.

Notable here: permissions, read-only and full file systems are found out by writing a byte to a file without a name in the
folder that is asked for; no process sees the probe of another one.
"""

import os
import tempfile
from pathlib import Path


def check_output_path(name, path, suffixes):
    """`path` as a Path.

    Args:
        name: of the field, for what is said.
        suffixes: the ones that can be written.

    Raises:
        ValueError: for another suffix, a folder of that name, and a folder that is missing or cannot be written to.
    """
    path = Path(path)
    where = f"{name}={str(path)!r}"
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"{where} has suffix {path.suffix!r}; choose from {', '.join(suffixes)}")
    if not path.parent.is_dir():
        raise ValueError(f"{where}: the directory {str(path.parent)!r} does not exist")
    if path.is_dir():
        raise ValueError(f"{where} is a directory; name a file")
    _probe(path.parent, where)
    return path


def check_output_folder(name, path):
    """Refuse a folder `path` that can neither be written to nor made. Raises ValueError naming the field `name`."""
    path = Path(path)
    where = f"{name}={str(path)!r}"
    nearest = next((part for part in (path, *path.parents) if part.exists()), Path())
    if not nearest.is_dir():
        raise ValueError(f"{where}: {str(nearest)!r} is a file, and no folder can be made of it; choose another place")
    _probe(nearest, where)


def _probe(folder, where):
    """Write a byte in `folder`, of which nothing stays."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        raise ValueError(f"{where} cannot be written: {error.strerror}; choose another place") from None


def partial_path(path):
    """The name under which this process writes what is to become `path`."""
    return path.with_name(f".{path.name}.partial-{os.getpid()}")
