"""The numbers that every function here accepts: finite and positive, or an error that names the field."""

import math


def positive(name, value, most=math.inf, zero=False):
    """`value` as a float. Raises ValueError naming `name` unless it is finite, positive (or zero) and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name}={value!r} is not a number")
    least = "at least 0" if zero else "greater than 0"
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero) or value > most:
        limit = "" if most == math.inf else f" and at most {most:g}"
        raise ValueError(f"{name}={value!r} is out of range: it must be finite, {least}{limit}")
    return float(value)
