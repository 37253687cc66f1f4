"""Files of results, written whole or not at all."""

import os


def write_atomically(text, target):
    """Put text into a file at once, so that a run that is cut short never leaves half of one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, target)
