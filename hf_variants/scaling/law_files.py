"""A law by name, or from the file that a fit wrote."""

import json
import os
from pathlib import Path

from ..report.output_file import check_output_path, partial_path
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
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"law={law!r} is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"law={law!r} holds a {type(data).__name__}, not a law written by `scaling fit`")
    try:
        return FittedLaw.from_dict(data)
    except ValueError as error:
        raise ValueError(f"law={law!r}: {error}") from None
    except (TypeError, AttributeError) as error:
        raise ValueError(f"law={law!r} is no law written by `scaling fit`: {error}") from None


def check_law_path(path):
    """Path of a law to be written. Raises ValueError where it cannot be."""
    return check_output_path("output", path, (".json",))


def write_law(fitted, path):
    """Write a `FittedLaw` as JSON, whole or not at all; returns the path."""
    path = check_law_path(path)
    partial = partial_path(path)
    try:
        partial.write_text(json.dumps(fitted.as_dict(), indent=2) + "\n", encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path
