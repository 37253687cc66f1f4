"""What a budget buys under a law: size, tokens, loss, steps, and the better split where the model will be served.

Notable here: size and tokens come from the law alone unless one of them is fixed; with a config the operations are counted
exactly (attention and output included) and 6 N D stands beside them.
"""

import math
from dataclasses import asdict, dataclass, field

from .budget import effective_tokens, hyperparameter_guides
from .checks import positive
from .fit import FittedLaw
from .laws import FLOPS_PER_PARAMETER_TOKEN


@dataclass
class TrainingPlan:
    """A training run; every number in plain units.

    Attributes:
        parameters, tokens: N and D. For a mixture of experts N counts active parameters.
        loss: predicted, nats per token; `interval` where the law was fitted here.
        tokens_per_parameter: D / N.
        overtraining: D over the tokens for which this N is compute-optimal.
        justified_by_inference: tokens of inference from which on this over-trained size is the cheapest way to its loss;
            None where it is not over-trained.
        served: the cheapest (N, D) of the same loss for the given `inference_tokens`, with what training and serving cost.
        hyperparameters: guides for learning rate and batch.
        batch_tokens, steps: of the run.
        warnings: what to know before believing it.
    """

    flops: float
    parameters: float
    tokens: float
    loss: float
    tokens_per_parameter: float
    overtraining: float
    justified_by_inference: float | None
    batch_tokens: int
    steps: int
    law: dict
    hyperparameters: dict
    hours: float | None = None
    money: float | None = None
    interval: tuple | None = None
    effective_tokens: float | None = None
    served: dict | None = None
    exact: dict | None = None
    warnings: list = field(default_factory=list)

    def as_dict(self):
        """Plain data."""
        return asdict(self)


def plan_training(
    law,
    budget,
    parameters=None,
    tokens=None,
    inference_tokens=None,
    unique_tokens=None,
    quality=1.0,
    batch_tokens=None,
    sequence_length=2048,
    config=None,
):
    """Plan a run.

    Args:
        law: `ScalingLaw` or `FittedLaw`.
        budget: `Budget`.
        parameters, tokens: fix one of them; the budget decides the other.
        inference_tokens: expected over the model's life; adds the size that is cheapest to train and serve.
        unique_tokens, quality: what the data are worth, see `effective_tokens`.
        batch_tokens: tokens per optimizer step; None takes the rounded guide.
        sequence_length: tokens per row, at which a config's operations are counted.
        config: `VariantsConfig` to plan for instead of a bare size.

    Raises:
        ValueError: for contradicting or absurd numbers, and a config that is no decoder.
    """
    fitted, law = (law, law.law) if isinstance(law, FittedLaw) else (None, law)
    if sum(value is not None for value in (parameters, tokens, config)) > 1:
        raise ValueError("give at most one of parameters, tokens, config: the budget decides the rest")
    positive("sequence_length", sequence_length)
    worth = lambda count: effective_tokens(count, unique_tokens, quality)  # noqa: E731
    exact, per_token = None, None
    if config is not None:
        exact = _exact(config, sequence_length)
        parameters, per_token = exact["active_parameters"], exact["training_flops_per_token"]
    n, d = _split(law, budget.flops, parameters, tokens, per_token, worth, unique_tokens, quality)
    loss = law.loss(n, worth(d))
    guides = hyperparameter_guides(n, d)
    batch = _batch(batch_tokens, guides, sequence_length)
    if d < batch:
        raise ValueError(
            f"the budget trains {d:.3g} tokens, less than one batch of {batch:,}: give a larger budget or a smaller model"
        )
    inference = law.justifying_inference(n, worth(d))
    plan = TrainingPlan(
        flops=budget.flops,
        parameters=n,
        tokens=d,
        loss=loss,
        tokens_per_parameter=d / n,
        overtraining=worth(d) / law.optimal_tokens(n),
        justified_by_inference=inference if inference > 1e-3 * d else None,
        batch_tokens=batch,
        steps=max(1, round(d / batch)),
        law=law.as_dict(),
        hyperparameters=guides,
        hours=budget.hours,
        money=budget.money,
        effective_tokens=worth(d),
        exact=exact,
    )
    if fitted is not None:
        _add_interval(plan, fitted)
    if exact is not None:
        _add_exact(plan, law)
    if unique_tokens is not None and d > 4 * unique_tokens:
        plan.warnings.append(f"{d / unique_tokens:.1f} passes over the data: beyond about 4, new data is worth clearly more")
    if inference_tokens is not None:
        plan.served = cheapest_to_serve(law, loss, inference_tokens)
    return plan


def cheapest_to_serve(law, loss, inference_tokens):
    """(N, D) of least 6ND + 2NT at equal loss (Sardana et al. 2023, arXiv 2401.00448, 3), as a dict with the operations."""
    inference_tokens = positive("inference_tokens", inference_tokens, zero=True)

    def cost(log_n):
        n = math.exp(log_n)
        return n * (FLOPS_PER_PARAMETER_TOKEN * law.tokens_for(loss, n) + 2.0 * inference_tokens)

    least = (law.A / (loss - law.E)) ** (1 / law.alpha)  # a smaller model never reaches the loss
    n = math.exp(_minimum(cost, math.log(least) + 1e-9, math.log(least) + 14))
    d = law.tokens_for(loss, n)
    training, serving = FLOPS_PER_PARAMETER_TOKEN * n * d, 2.0 * n * inference_tokens
    return {
        "parameters": n,
        "tokens": d,
        "loss": loss,
        "inference_tokens": inference_tokens,
        "training_flops": training,
        "inference_flops": serving,
        "total_flops": training + serving,
    }


def _split(law, flops, parameters, tokens, per_token, worth, unique_tokens, quality):
    if parameters is not None:
        n = positive("parameters", parameters)
        return n, flops / (per_token or FLOPS_PER_PARAMETER_TOKEN * n)
    if tokens is not None:
        d = positive("tokens", tokens)
        return flops / (FLOPS_PER_PARAMETER_TOKEN * d), d
    if unique_tokens is None and quality == 1.0:
        return law.optimum(flops)
    pairs = flops / FLOPS_PER_PARAMETER_TOKEN
    middle = math.log(law.optimum(flops)[0])
    n = math.exp(_minimum(lambda x: law.loss(math.exp(x), worth(pairs / math.exp(x))), middle - 12, middle + 12))
    return n, pairs / n


def _minimum(function, low, high):
    """Where a function of one minimum is least: golden-section search."""
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(120):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if function(left) <= function(right):
            high = right
        else:
            low = left
    return (low + high) / 2


def _batch(batch_tokens, guides, sequence_length):
    if batch_tokens is not None:
        batch = positive("batch_tokens", batch_tokens)
        if batch < sequence_length:
            raise ValueError(f"batch_tokens={batch_tokens} holds no row of sequence_length={sequence_length:g} tokens")
        return round(batch)
    rows = max(1, round(guides["steplaw"]["batch_tokens"] / sequence_length))
    return round(rows * sequence_length)


def _exact(config, length):
    from ..analysis import count_parameters, flops_per_token

    if len(config.stacks) > 1 or not config.is_causal:
        kind = "an encoder-decoder" if len(config.stacks) > 1 else "an encoder (is_causal=False)"
        raise ValueError(
            f"config is {kind}, and the laws are of the next-token loss of decoders; give parameters alone, or a decoder"
        )
    counts = count_parameters(config)
    forward = flops_per_token(config, length).total
    return {
        "active_parameters": counts.active,
        "total_parameters": counts.total,
        "forward_flops_per_token": forward,
        "training_flops_per_token": 3.0 * forward,
        "six_n": FLOPS_PER_PARAMETER_TOKEN * counts.active,
        "sequence_length": length,
    }


def _add_interval(plan, fitted):
    prediction = fitted.predict(plan.parameters, plan.effective_tokens)
    if prediction["low"] is not None:
        plan.interval = (prediction["low"], prediction["high"])
    for name, factor in prediction["outside"].items():
        plan.warnings.append(f"{name} lies {factor:.3g} x beyond the runs that the law was fitted to")
    plan.warnings.extend(fitted.warnings)


def _add_exact(plan, law):
    exact = plan.exact
    if exact["total_parameters"] > exact["active_parameters"]:
        dense = law.loss(exact["total_parameters"], plan.effective_tokens)
        plan.warnings.append(
            f"mixture of experts: the law knows dense models; expect a loss between {dense:.3f} (all parameters) and "
            f"{plan.loss:.3f} (active ones)"
        )
    ratio = exact["training_flops_per_token"] / exact["six_n"]
    if abs(ratio - 1) > 0.05:
        plan.warnings.append(
            f"exact operations are {ratio:.2f} x 6 N D at {exact['sequence_length']} tokens; the plan uses the exact ones"
        )
