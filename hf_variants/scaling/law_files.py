"""A law by name, or from the file that a fit wrote."""

import json
import os
from pathlib import Path

from .fit import FittedLaw
from .laws import PUBLISHED, published_law


def read_law(law):
    """`ScalingLaw` of a published name, or `FittedLaw` of a .json file. Raises ValueError for neither."""
    path = Path(law)
    if law in PUBLISHED or path.suffix != ".json":
        return published_law(law)
    if not path.is_file():
        raise ValueError(f"law={law!r} is not a file")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"law={law!r} is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"law={law!r} holds a {type(data).__name__}, not a law written by `scaling fit`")
    return FittedLaw.from_dict(data)


def write_law(fitted, path):
    """Write a `FittedLaw` as JSON, whole or not at all; returns the path."""
    path = Path(path)
    if path.suffix != ".json":
        raise ValueError(f"output={str(path)!r} has suffix {path.suffix!r}; choose .json")
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(json.dumps(fitted.as_dict(), indent=2) + "\n", encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path
