"""Means, intervals and verdicts from a few seeds, by Student's t.

Notable here: a variant is compared with its reference seed by seed, for the seed fixes the order of the data and so part of
the noise; the verdict is corrected for the number of comparisons (Holm 1979), so that among twenty equal variants none looks
better by luck.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """Mean of `count` values with the half width of its confidence interval; None where one value tells no spread."""

    mean: float
    half_width: float | None
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Difference:
    """A variant against its reference over the seeds that both finished.

    Attributes:
        interval: of variant - reference, paired by seed; below zero is a lower loss.
        p_value: two-sided, of a difference this large by chance; None for fewer than two seeds.
    """

    interval: Interval
    p_value: float | None


def interval(values, confidence=0.95):
    """`Interval` of a non-empty list of numbers."""
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2:
        return Interval(mean, None, None, count)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = t_quantile(0.5 + confidence / 2, count - 1) * deviation / math.sqrt(count)
    return Interval(mean, half, deviation, count)


def compare(values, reference, confidence=0.95):
    """`Difference` of two {seed: value}; None where they share no seed."""
    shared = sorted(values.keys() & reference.keys())
    if not shared:
        return None
    differences = [values[seed] - reference[seed] for seed in shared]
    found = interval(differences, confidence)
    if found.deviation is None:
        return Difference(found, None)
    if found.deviation == 0:
        return Difference(found, 1.0 if found.mean == 0 else 0.0)
    t = abs(found.mean) / (found.deviation / math.sqrt(found.count))
    return Difference(found, 2 * (1 - t_cdf(t, found.count - 1)))


def holm(p_values):
    """p-values corrected for their number (Holm 1979): a list in the same order; None stays None."""
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected, largest = [None] * len(p_values), 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[index] = largest
    return corrected


def verdict(difference, corrected_p, confidence=0.95):
    """`better`, `worse`, `within noise`, or `one seed` where nothing can be told; lower is better."""
    if difference is None or corrected_p is None:
        return "one seed"
    if corrected_p >= 1 - confidence:
        return "within noise"
    return "better" if difference.interval.mean < 0 else "worse"


def t_cdf(t, freedom):
    """P(T <= t) of Student's t with a whole number of degrees of freedom (Abramowitz & Stegun 1964, 26.7.3 and 26.7.4)."""
    if t < 0:
        return 1 - t_cdf(-t, freedom)
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    if freedom % 2:
        term, total = math.cos(angle), 0.0
        for index in range(1, freedom - 1, 2):
            total += term
            term *= square * (index + 1) / (index + 2)
        inside = 2 / math.pi * (angle + sine * total)
    else:
        term, total = 1.0, 0.0
        for index in range(0, freedom, 2):
            total += term
            term *= square * (index + 1) / (index + 2)
        inside = sine * total
    return 0.5 + inside / 2


def t_quantile(probability, freedom):
    """The t with `t_cdf(t, freedom)` = probability, for probabilities in [0.5, 1)."""
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return high
