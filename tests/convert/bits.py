"""Weights compared as the tests of conversion mean it: the same names, dtypes and bits."""

from hf_variants.convert.stages import same_bits


def assert_same_bits(first, second):
    """Two dicts of tensors by name; the error names the first tensor that differs."""
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert same_bits(tensor, second[name]), name
