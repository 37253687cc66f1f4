"""Silence about native configs that are only built to be compared."""

import logging
from contextlib import contextmanager


@contextmanager
def quiet():
    """Without the library's warnings, and those of this package, about native configs that are only built to be compared."""
    from transformers.utils import logging as library

    ours, before = logging.getLogger("hf_variants"), library.get_verbosity()
    level = ours.level
    library.set_verbosity_error()
    ours.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.set_verbosity(before)
        ours.setLevel(level)
