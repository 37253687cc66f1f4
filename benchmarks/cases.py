"""Every case, in the order of the table."""

from benchmarks import attention_terms, generation, latent, loading, mixtures, packed_rows, recipe, training_step

_MODULES = (training_step, recipe, generation, attention_terms, latent, mixtures, packed_rows, loading)
CASES = {case.name: case for module in _MODULES for case in module.CASES}


def find_case(name):
    """The case of that name. Raises ValueError for an unknown one, naming the choices."""
    if name not in CASES:
        raise ValueError(f"unknown case {name!r}; choose from {list(CASES)}")
    return CASES[name]
