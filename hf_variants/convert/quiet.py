"""Silence about native configs that are only built to be compared."""

from contextlib import contextmanager


@contextmanager
def quiet():
    """Without the library's warnings about native configs that are only built to be compared."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
