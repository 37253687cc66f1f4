"""Fits L(N, D) = E + A / N^alpha + B / D^beta to runs, with bootstrap intervals.

Notable here: the objective is a SUM of Huber terms on log losses, as averaging scales the gradient down until L-BFGS stops
early, which is what Besiroglu et al. 2024 (arXiv 2404.10102) found in the published fit; every start of the grid is
evaluated, the best are polished in double precision.
"""

import itertools
from dataclasses import dataclass, field

import torch

from .checks import positive
from .laws import ScalingLaw

_NAMES = ("A", "B", "E", "alpha", "beta")
# Starts of Hoffmann et al. 2022, D.3, for log A, log B, log E, alpha, beta; with a finer E, which small models need.
_GRID = ((0, 5, 10, 15, 20, 25), (0, 5, 10, 15, 20, 25), (-1, -0.5, 0, 0.5, 1), (0.1, 0.5, 1, 1.5, 2), (0.1, 0.5, 1, 1.5, 2))
_POLISHED = 8
LEAST_RUNS = 6
# percentiles of a single resampled fit would be an interval without width
LEAST_RESAMPLED = 2


@dataclass
class FittedLaw:
    """A law with what is known about its certainty.

    Attributes:
        law: `ScalingLaw` of least objective.
        intervals: {name: (low, high)} of A, B, E, alpha, beta and of the exponents of the optimum, `N_exponent` and
            `D_exponent` (N* ~ C^N_exponent), at `confidence`.
        samples: the laws of the bootstrap, which predictions draw their intervals from.
        objective: sum of Huber terms at the optimum.
        residuals: predicted minus measured loss of every run.
        ranges: {"parameters" | "tokens": (least, most)} of the runs.
    """

    law: ScalingLaw
    intervals: dict
    samples: list
    objective: float
    residuals: list
    ranges: dict
    confidence: float
    warnings: list = field(default_factory=list)

    def predict(self, parameters, tokens):
        """{"loss", "low", "high", "outside"}: the loss, its interval, and by what factor each axis lies beyond the runs."""
        losses = [law.loss(parameters, tokens) for law in self.samples]
        low, high = _interval(losses, self.confidence) if losses else (None, None)
        outside = {}
        for name, value in (("parameters", parameters), ("tokens", tokens)):
            least, most = self.ranges[name]
            if value > most or value < least:
                outside[name] = value / most if value > most else value / least
        return {"loss": self.law.loss(parameters, tokens), "low": low, "high": high, "outside": outside}

    def as_dict(self):
        """Plain data that `read_law` reads again."""
        return {
            "law": self.law.as_dict(),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "confidence": self.confidence,
            "objective": self.objective,
            "residuals": self.residuals,
            "ranges": {name: list(ends) for name, ends in self.ranges.items()},
            "warnings": self.warnings,
            "samples": [[getattr(law, name) for name in _NAMES] for law in self.samples],
        }

    @classmethod
    def from_dict(cls, data):
        """The inverse of `as_dict`. Raises ValueError naming what is missing."""
        missing = [key for key in ("law", "intervals", "ranges", "samples", "confidence") if key not in data]
        if missing:
            raise ValueError(f"this is no law written by `scaling fit`: it has no {', '.join(missing)}")
        samples = [ScalingLaw(*values, source="bootstrap") for values in data["samples"]]
        pairs = {key: {name: tuple(ends) for name, ends in data[key].items()} for key in ("intervals", "ranges")}
        return cls(
            ScalingLaw(**data["law"]), pairs["intervals"], samples, data.get("objective"), data.get("residuals", []),
            pairs["ranges"], data["confidence"], data.get("warnings", []),
        )  # fmt: skip


def fit_law(runs, delta=1e-3, bootstrap=200, confidence=0.95, seed=0, progress=None):
    """Fit the parametric law.

    Args:
        runs: `Run`s; at least 6, of at least 3 different sizes and 3 different token counts.
        delta: where the Huber loss on log L turns linear (Hoffmann et al. 2022 use 1e-3).
        bootstrap: number of resampled fits; 0 gives no intervals.
        confidence: of the percentile intervals.
        progress: called with (done, total) after each resampled fit.

    Returns:
        `FittedLaw`.

    Raises:
        ValueError: for too few or too uniform runs (saying how many are needed), and for numbers out of range.
    """
    check_runs(runs)
    _check_numbers(delta, bootstrap, confidence)
    n, d, loss = (torch.tensor([getattr(run, name) for run in runs], dtype=torch.float64).log() for name in
                  ("parameters", "tokens", "loss"))  # fmt: skip
    best, objective = _fit_grid(n, d, loss, delta)
    law = _law(best, f"fitted to {len(runs)} runs")
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for done in range(1, bootstrap + 1):
        rows = _resample(n, d, generator)
        samples.append(_law(_polish(best, n[rows], d[rows], loss[rows], delta, rounds=1)[0], "bootstrap"))
        if progress:
            progress(done, bootstrap)
    intervals = _intervals(samples, confidence) if samples else {}
    residuals = [law.loss(run.parameters, run.tokens) - run.loss for run in runs]
    ranges = {
        name: (min(getattr(r, name) for r in runs), max(getattr(r, name) for r in runs)) for name in ("parameters", "tokens")
    }
    return FittedLaw(law, intervals, samples, objective, residuals, ranges, confidence, _warnings(law, intervals))


def check_runs(runs):
    """Refuse runs that cannot determine five constants. Raises ValueError."""
    if len(runs) < LEAST_RUNS:
        raise ValueError(f"a fit of 5 constants needs at least {LEAST_RUNS} runs; got {len(runs)}")
    for name, symbol in (("parameters", "N"), ("tokens", "D")):
        different = len({getattr(run, name) for run in runs})
        if different < 3:
            raise ValueError(f"a fit needs at least 3 different {name} ({symbol}) to tell its term from E; got {different}")


def _check_numbers(delta, bootstrap, confidence):
    positive("delta", delta)
    if isinstance(bootstrap, bool) or not isinstance(bootstrap, int) or bootstrap < 0 or 0 < bootstrap < LEAST_RESAMPLED:
        raise ValueError(
            f"bootstrap={bootstrap!r} must be 0, for no intervals, or a whole number of at least {LEAST_RESAMPLED}"
        )
    if positive("confidence", confidence, most=1) == 1:
        raise ValueError(f"confidence={confidence!r} must be less than 1; 0.95 is usual")


def _objective(theta, n, d, loss, delta):
    """Sum over runs of Huber(log predicted - log measured); theta [..., 5], runs [R] -> [...]."""
    a, b, e, alpha, beta = (theta[..., index, None] for index in range(5))
    terms = torch.stack(torch.broadcast_tensors(a - alpha * n, b - beta * d, e), dim=0)
    error = (torch.logsumexp(terms, dim=0) - loss).abs()
    return torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta)).sum(-1)


def _fit_grid(n, d, loss, delta):
    starts = torch.tensor(list(itertools.product(*_GRID)), dtype=torch.float64)
    order = _objective(starts, n, d, loss, delta).argsort()[:_POLISHED]
    fits = [_polish(starts[index], n, d, loss, delta) for index in order]
    return min(fits, key=lambda fit: fit[1])


def _polish(start, n, d, loss, delta, rounds=3):
    # A Huber term of 1e-3 is nearly |error|: a wide one first finds the valley, the asked one then its bottom.
    theta = start.clone().requires_grad_()
    for width in (max(delta, 1e-1), delta):
        for _ in range(rounds):
            optimizer = torch.optim.LBFGS(
                [theta],
                max_iter=300,
                history_size=20,
                tolerance_grad=1e-12,
                tolerance_change=1e-14,
                line_search_fn="strong_wolfe",
            )

            def closure(optimizer=optimizer, width=width):
                optimizer.zero_grad()
                value = _objective(theta, n, d, loss, width) / width
                value.backward()
                return value

            optimizer.step(closure)
    with torch.no_grad():
        value = float(_objective(theta, n, d, loss, delta))
    return theta.detach(), value if value == value else float("inf")


def _resample(n, d, generator):
    """Rows drawn with replacement, still with enough different sizes and token counts to determine a law."""
    while True:
        rows = torch.randint(len(n), (len(n),), generator=generator)
        if min(len(n[rows].unique()), len(d[rows].unique())) >= 3:
            return rows


def _law(theta, source):
    a, b, e, alpha, beta = theta.tolist()
    tiny = 1e-12
    exp = lambda value: float(torch.tensor(value, dtype=torch.float64).exp().clamp(tiny, 1e300))  # noqa: E731
    return ScalingLaw(exp(a), exp(b), exp(e), max(alpha, tiny), max(beta, tiny), source)


def _interval(values, confidence):
    edges = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
    return tuple(torch.tensor(values, dtype=torch.float64).quantile(edges).tolist())


def _intervals(samples, confidence):
    intervals = {name: _interval([getattr(law, name) for law in samples], confidence) for name in _NAMES}
    intervals["N_exponent"] = _interval([law.beta / (law.alpha + law.beta) for law in samples], confidence)
    intervals["D_exponent"] = _interval([law.alpha / (law.alpha + law.beta) for law in samples], confidence)
    return intervals


def _warnings(law, intervals):
    """What the runs leave open, in words."""
    found = []
    for name in ("alpha", "beta"):
        value = getattr(law, name)
        low, high = intervals.get(name, (value, value))
        if value < 1e-3 or value > 3:
            found.append(f"{name}={value:.3g} is at the edge of what a power law means: the runs do not determine it")
        elif high - low > value:
            found.append(
                f"{name}={value:.3g} is uncertain by more than itself ({low:.3g} to {high:.3g}): add runs that vary it"
            )
    if law.E < 1e-3:
        found.append("E is about 0: the runs are too small to show an irreducible loss, so do not extrapolate far")
    return found
