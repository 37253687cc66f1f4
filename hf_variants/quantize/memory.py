"""Freed memory back to the system: layers come and go, and the C library would keep what they leave."""

import ctypes
import gc
import sys


def give_back():
    """Return freed heap memory to the system where the C library can (glibc); elsewhere only collect garbage."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
