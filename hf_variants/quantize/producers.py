"""Who computes the scales: this package, or AutoAWQ in an interpreter of its own.

Notable here: AutoAWQ is archived by its authors and wants an older transformers than this package, so it is never imported
here; what it cannot do is refused by the key that asks for it, never done by another producer in its place.
"""

import os
import shutil
from pathlib import Path


class ProducerFailed(RuntimeError):
    """AutoAWQ failed, or wrote what cannot be read whole."""


PRODUCERS = ("own", "autoawq")
INSTALL = 'python3 -m venv autoawq-env && autoawq-env/bin/pip install torch "transformers==4.51.3" "autoawq==0.2.9"'
# What AutoAWQ reads of the options of AWQ.
AUTOAWQ_OPTIONS = ("clip", "calibration_length")
_GROUP_SIZES = (32, 64, 128, 256)


def check_producer(
    name, python=None, *, method="awq", group_size=None, symmetric=False, leave_unquantized=(), max_bytes=None, options=()
):
    """Raise ValueError where `name` is no producer, or cannot do what is asked for, whatever the model is.

    Args:
        python: path of the interpreter that has AutoAWQ.
        options: names of further options of AWQ that were given.
    """
    if name not in PRODUCERS:
        raise ValueError(f"producer={name!r} is unknown; choose from {list(PRODUCERS)}")
    if name == "own":
        if python is not None:
            raise ValueError(f"producer_python={str(python)!r} means nothing to producer='own'; give producer='autoawq' too")
        return
    if python is None:
        raise ValueError(
            "producer='autoawq' runs in an interpreter of its own, since AutoAWQ is archived and wants an older transformers: "
            f"{INSTALL}; then give producer_python=autoawq-env/bin/python"
        )
    find_interpreter(python)
    if method != "awq":
        raise ValueError(f"method={method!r} is nothing that producer='autoawq' makes; use method='awq' or producer='own'")
    if group_size not in (None, *_GROUP_SIZES):
        raise ValueError(
            f"group_size={group_size} is nothing that producer='autoawq' makes; choose from {list(_GROUP_SIZES)}, or "
            "producer='own'"
        )
    given = {"symmetric": symmetric, "leave_unquantized": leave_unquantized, "max_bytes": max_bytes is not None}
    unread = [key for key, value in given.items() if value] + [key for key in options if key not in AUTOAWQ_OPTIONS]
    if unread:
        raise ValueError(f"{' and '.join(unread)} mean nothing to producer='autoawq'; leave them out, or use producer='own'")


def find_interpreter(python):
    """Full path of an interpreter, symbolic links kept, since those of virtual environments are links.

    Raises:
        ValueError: where there is no such program.
    """
    found = shutil.which(python) or shutil.which(os.path.expanduser(python))
    if found is None:
        what = "is not executable" if Path(python).exists() else "does not exist"
        raise ValueError(f"producer_python={str(python)!r} {what}; give the python of the environment that has AutoAWQ")
    return os.path.abspath(found)
