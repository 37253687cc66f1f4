"""Intervals and verdicts: Student's t against its tables, and how often equal variants are called different."""

import random

import pytest

from hf_variants.ablation.statistics import compare, holm, interval, t_cdf, t_quantile, verdict

# two-sided 95% and 99% points, from the tables of Student's t
TABLE = {1: (12.706, 63.657), 2: (4.303, 9.925), 3: (3.182, 5.841), 4: (2.776, 4.604), 9: (2.262, 3.250), 30: (2.042, 2.750)}


@pytest.mark.parametrize("freedom", TABLE)
def test_quantiles_are_those_of_the_tables(freedom):
    for probability, expected in zip((0.975, 0.995), TABLE[freedom], strict=True):
        assert t_quantile(probability, freedom) == pytest.approx(expected, abs=6e-4)
        assert t_cdf(expected, freedom) == pytest.approx(probability, abs=2e-5)
        assert t_cdf(-expected, freedom) == pytest.approx(1 - probability, abs=2e-5)


def test_interval_of_a_few_values():
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.deviation == 1.0 and found.half_width == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    alone = interval([1.5])
    assert (alone.mean, alone.half_width, alone.deviation) == (1.5, None, None)


def test_seeds_are_paired():
    """A difference that is the same at each seed stands out of a spread between seeds that is far larger."""
    reference = {0: 1.0, 1: 2.0, 2: 3.0}
    better = compare({0: 0.9, 1: 1.91, 2: 2.89, 7: 0.0}, reference)
    assert better.interval.mean == pytest.approx(-0.1, abs=1e-6) and better.interval.count == 3
    assert verdict(better, better.p_value) == "better"
    assert compare({5: 1.0}, reference) is None
    assert verdict(compare({0: 0.5}, reference), None) == "one seed"
    assert verdict(compare({0: 1.1, 1: 1.8, 2: 3.1}, reference), 0.9) == "within noise"
    same = compare(reference, reference)
    assert same.p_value == 1.0


def test_holm_is_the_published_example():
    """p-values 0.01, 0.04, 0.03, 0.005 of four tests: 0.03, 0.06, 0.06, 0.02."""
    assert holm([0.01, 0.04, None, 0.03, 0.005]) == [
        pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06), pytest.approx(0.02)
    ]  # fmt: skip


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_variants_are_rarely_called_different(seeds):
    """Five variants without any effect, many times: some verdict is wrong in at most five of a hundred ablations."""
    draw, wrong, repeats = random.Random(seeds), 0, 600
    for _ in range(repeats):
        shared = {seed: draw.gauss(3.0, 0.1) for seed in range(seeds)}
        reference = {seed: value + draw.gauss(0, 0.02) for seed, value in shared.items()}
        found = [compare({s: v + draw.gauss(0, 0.02) for s, v in shared.items()}, reference) for _ in range(5)]
        corrected = holm([difference.p_value for difference in found])
        wrong += any(verdict(d, p) in ("better", "worse") for d, p in zip(found, corrected, strict=True))
    assert wrong / repeats < 0.07


def test_a_real_effect_is_found():
    draw, found = random.Random(0), 0
    for _ in range(200):
        reference = {seed: draw.gauss(3.0, 0.1) for seed in range(5)}
        changed = {seed: value - 0.1 + draw.gauss(0, 0.02) for seed, value in reference.items()}
        difference = compare(changed, reference)
        found += verdict(difference, holm([difference.p_value, 0.5, 0.5])[0]) == "better"
    assert found > 190
