"""Every case, in the order of the table."""

from benchmarks import generation, training_step

CASES = {case.name: case for module in (training_step, generation) for case in module.CASES}


def find_case(name):
    """The case of that name. Raises ValueError for an unknown one, naming the choices."""
    if name not in CASES:
        raise ValueError(f"unknown case {name!r}; choose from {list(CASES)}")
    return CASES[name]
