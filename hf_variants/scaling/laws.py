"""The parametric law L(N, D) = E + A / N^alpha + B / D^beta, and the published constants.

Notable here: a law knows its own optimum in closed form (Hoffmann et al. 2022, arXiv 2203.15556, equation 4), so "20 tokens
per parameter" is a result to compare with, never an input: the constants of the same paper do not give it at every budget.
"""

import math
from dataclasses import asdict, dataclass

from .checks import positive

# Training costs about 6 operations per parameter and token: 2 forward, 4 backward (Kaplan et al. 2020, arXiv 2001.08361, 2.1).
FLOPS_PER_PARAMETER_TOKEN = 6.0


@dataclass(frozen=True)
class ScalingLaw:
    """Loss (nats per token) of a model of N parameters after D tokens.

    Attributes:
        A, alpha: what is lost for want of parameters, A / N^alpha.
        B, beta: what is lost for want of data, B / D^beta.
        E: the loss that no size removes.
        source: where the constants come from.

    Raises:
        ValueError: for constants that are not positive.
    """

    A: float
    B: float
    E: float
    alpha: float
    beta: float
    source: str = "given"

    def __post_init__(self):
        for name in ("A", "B", "alpha", "beta"):
            positive(name, getattr(self, name))
        positive("E", self.E, zero=True)

    def loss(self, parameters, tokens):
        """Loss in nats per token."""
        parameters, tokens = positive("parameters", parameters), positive("tokens", tokens)
        return self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta

    def optimum(self, flops):
        """(N, D) of least loss that `flops` = 6 N D pay for."""
        pairs = positive("flops", flops) / FLOPS_PER_PARAMETER_TOKEN
        total = self.alpha + self.beta
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / total)
        return ratio * pairs ** (self.beta / total), pairs ** (self.alpha / total) / ratio

    def optimal_tokens(self, parameters):
        """D for which a model of N parameters is the compute-optimal one."""
        data_term = self.alpha * self.A * positive("parameters", parameters) ** -self.alpha / self.beta
        return (self.B / data_term) ** (1 / self.beta)

    def tokens_for(self, loss, parameters):
        """D that brings a model of N parameters to `loss`; infinite where no amount of data does."""
        left = loss - self.E - self.A * positive("parameters", parameters) ** -self.alpha
        return (self.B / left) ** (1 / self.beta) if left > 0 else math.inf

    def justifying_inference(self, parameters, tokens):
        """Tokens of inference T for which (N, D) is the cheapest way to its loss, counting 6ND to train and 2NT to serve.

        The stationary point of 6 N D(N) + 2 N T along the curve of equal loss (Sardana et al. 2023, arXiv 2401.00448, 3):
        T = 3 D (alpha A N^-alpha / (beta B D^-beta) - 1). Zero at the compute optimum; negative for a model that has seen
        less, which no inference volume justifies.
        """
        size = self.alpha * self.A * positive("parameters", parameters) ** -self.alpha
        data = self.beta * self.B * positive("tokens", tokens) ** -self.beta
        return 3.0 * tokens * (size / data - 1.0)

    def as_dict(self):
        """Plain data."""
        return asdict(self)


PUBLISHED = {
    "hoffmann2022": ScalingLaw(
        406.4, 410.7, 1.69, 0.34, 0.28, "Hoffmann et al. 2022, arXiv 2203.15556, appendix D.3, as rounded in the text"
    ),
    "besiroglu2024": ScalingLaw(
        482.01, 2085.43, 1.8172, 0.3478, 0.3658, "Besiroglu et al. 2024, arXiv 2404.10102: the same points fitted again"
    ),
}


def published_law(name):
    """A law of `PUBLISHED`. Raises ValueError for an unknown name, with the choices."""
    if name not in PUBLISHED:
        raise ValueError(f"law={name!r} is unknown; choose from {sorted(PUBLISHED)}, or give a file written by `scaling fit`")
    return PUBLISHED[name]
