"""IsoFLOP profiles: at each budget a parabola of loss over log N; its minima give N* as a power of the budget.

Notable here: a profile whose minimum its runs do not enclose is refused by name, for a vertex outside them is an
extrapolation that looks like a measurement (approach 2 of Hoffmann et al. 2022, arXiv 2203.15556, 3.2).
"""

import math
from dataclasses import asdict, dataclass, field

import numpy as np


@dataclass
class Profile:
    """Runs of one budget: `coefficients` of loss = c0 + c1 x + c2 x^2 with x = log10 N, and the vertex."""

    flops: float
    parameters: float
    tokens: float
    loss: float
    coefficients: list
    points: list


@dataclass
class IsoFlopFit:
    """Profiles and, from two of them on, N* = N_coefficient * C^N_exponent (and D* likewise).

    `left_out` says by budget why it is not used.
    """

    profiles: list
    left_out: dict
    N_exponent: float | None = None
    N_coefficient: float | None = None
    D_exponent: float | None = None
    D_coefficient: float | None = None
    warnings: list = field(default_factory=list)

    def as_dict(self):
        """Plain data."""
        return {**asdict(self), "left_out": {f"{flops:.6g}": why for flops, why in self.left_out.items()}}


def fit_isoflop(runs, tolerance=0.05):
    """Group runs by budget (flops within a factor 1 + `tolerance` of the group's first) and fit the profiles.

    Raises:
        ValueError: where no budget has 3 different sizes around a minimum.
    """
    profiles, left_out = [], {}
    for group in _groups(runs, tolerance):
        flops = math.exp(sum(math.log(run.flops) for run in group) / len(group))
        try:
            profiles.append(_profile(flops, group))
        except ValueError as error:
            left_out[flops] = str(error)
    if not profiles:
        reasons = "; ".join(f"{flops:.3g}: {why}" for flops, why in left_out.items())
        raise ValueError(f"no budget shows a minimum over N (3 different sizes of equal flops are needed): {reasons}")
    result = IsoFlopFit(profiles, left_out)
    if len(profiles) > 1:
        logs = np.log([[p.flops, p.parameters, p.tokens] for p in profiles])
        (result.N_exponent, n), (result.D_exponent, d) = (
            map(float, np.polyfit(logs[:, 0], logs[:, column], 1)) for column in (1, 2)
        )
        result.N_coefficient, result.D_coefficient = math.exp(n), math.exp(d)
    else:
        result.warnings.append("one budget only: N* and D* are known there, their growth with the budget is not")
    return result


def _groups(runs, tolerance):
    groups = []
    for run in sorted(runs, key=lambda run: run.flops):
        if groups and run.flops <= groups[-1][0].flops * (1 + tolerance):
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def _profile(flops, group):
    sizes = sorted({run.parameters for run in group})
    if len(sizes) < 3:
        raise ValueError(f"{len(sizes)} different sizes, 3 are needed")
    x = np.log10([run.parameters for run in group])
    c2, c1, c0 = np.polyfit(x, [run.loss for run in group], 2)
    if c2 <= 0:
        raise ValueError("the losses do not curve upwards")
    vertex = -c1 / (2 * c2)
    if not x.min() <= vertex <= x.max():
        side = "smaller" if vertex < x.min() else "larger"
        raise ValueError(f"the minimum lies outside the runs: add {side} models")
    parameters = float(10**vertex)
    per_token = np.mean([run.flops / (run.parameters * run.tokens) for run in group])
    return Profile(
        flops,
        parameters,
        float(flops / (per_token * parameters)),
        float(c0 + c1 * vertex + c2 * vertex**2),
        [float(c) for c in (c0, c1, c2)],
        [(run.parameters, run.loss) for run in group],
    )
