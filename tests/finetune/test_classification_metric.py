"""The `classification` metric against values worked out by hand, and at its edges."""

import pytest

from hf_variants.metrics import load_metric


@pytest.fixture(scope="module")
def metric():
    return load_metric("classification")


def test_three_classes(metric):
    # confusion (rows: references): [[2, 1, 0], [0, 1, 1], [0, 0, 1]]
    values = metric.compute(references=[0, 0, 0, 1, 1, 2], predictions=[0, 0, 1, 1, 2, 2])
    assert values["accuracy"] == pytest.approx(4 / 6) and values["examples"] == 6
    assert values["macro_f1"] == pytest.approx((4 / 5 + 2 / 4 + 2 / 3) / 3)
    # (4 * 6 - (3*2 + 2*2 + 1*2)) / sqrt((36 - (4 + 4 + 4)) * (36 - (9 + 4 + 1)))
    assert values["matthews_correlation"] == pytest.approx(12 / (24 * 22) ** 0.5)


def test_perfect_constant_and_absent(metric):
    assert metric.compute(references=[0, 1, 1], predictions=[0, 1, 1])["matthews_correlation"] == pytest.approx(1.0)
    constant = metric.compute(references=[0, 1, 1, 1], predictions=[1, 1, 1, 1])
    assert constant["matthews_correlation"] == 0.0 and constant["macro_f1"] == pytest.approx((0 + 6 / 7) / 2)
    # class 1 occurs nowhere and does not count
    assert metric.compute(references=[0, 2], predictions=[0, 2])["macro_f1"] == 1.0
