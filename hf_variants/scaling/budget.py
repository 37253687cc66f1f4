"""A budget in operations, in hours of hardware or in money; what data are worth; published guides for the learning rate.

Notable here: exactly one kind of budget is given, and everything that turns hours or money into operations is asked for by
name, since a default price or utilisation would decide the plan silently.
"""

import math
from dataclasses import dataclass

from .checks import positive

# Repetitions after which repeated tokens are worth 1 - 1/e of new ones (Muennighoff et al. 2023, arXiv 2305.16264, 3.1).
REPEAT_HALF_WORTH = 15.39


@dataclass(frozen=True)
class Budget:
    """Training operations, and what they cost where that is known.

    Attributes:
        flops: operations.
        hours: wall-clock hours, or None.
        money: cost in the currency of the price, or None.
    """

    flops: float
    hours: float | None = None
    money: float | None = None

    @classmethod
    def of(cls, flops=None, hours=None, money=None, devices=None, peak_tflops=None, mfu=None, price_per_hour=None):
        """Build a budget from one of flops, hours and money.

        Args:
            hours: wall-clock hours of `devices` accelerators, a whole number of them.
            money: spent at `price_per_hour` per accelerator and hour.
            peak_tflops: of one accelerator at the training dtype, dense, in 10^12 operations per second.
            mfu: model FLOPs utilisation, in (0, 1].

        Raises:
            ValueError: for none or several budgets, or a missing or absurd number.
        """
        given = {name: value for name, value in {"flops": flops, "hours": hours, "money": money}.items() if value is not None}
        if len(given) != 1:
            raise ValueError(f"give exactly one of flops, hours, money; got {sorted(given) or 'none'}")
        hardware = {"devices": devices, "peak_tflops": peak_tflops, "mfu": mfu}
        if money is not None:
            hardware["price_per_hour"] = price_per_hour
        known = {name: value for name, value in hardware.items() if value is not None}
        missing = [name for name in hardware if name not in known]
        if missing and (flops is None or known or price_per_hour is not None):
            # half a description of the hardware would give neither hours nor money, and say nothing
            what = f"a budget in {next(iter(given))}" if flops is None else "hours or money of a budget in flops"
            raise ValueError(f"{what} also needs {', '.join(missing)}")
        for name, value in known.items():
            positive(name, value, most=1.0 if name == "mfu" else math.inf)
        if devices is not None and devices != int(devices):
            raise ValueError(f"devices={devices!r} must be a whole number of accelerators, at least 1")
        if price_per_hour is not None:
            positive("price_per_hour", price_per_hour)
        speed = devices * peak_tflops * 1e12 * mfu if {"devices", "peak_tflops", "mfu"} <= set(known) else None
        if flops is not None:
            flops = positive("flops", flops)
            hours = flops / speed / 3600 if speed else None
        else:
            hours = positive("hours", hours) if money is None else positive("money", money) / (devices * price_per_hour)
            flops = hours * 3600 * speed
        if money is None and hours is not None and price_per_hour is not None and devices is not None:
            money = hours * devices * price_per_hour
        if not 1e6 <= flops <= 1e32:
            raise ValueError(f"the budget is {flops:.3g} operations; that is not between 1e6 and 1e32: check the units")
        return cls(flops, hours, money)


def effective_tokens(tokens, unique_tokens=None, quality=1.0):
    """Tokens of new data of the law's own quality that `tokens` are worth.

    Args:
        tokens: trained on.
        unique_tokens: distinct ones among them; more passes are worth less and less: U + U R (1 - exp(-r / R)) with
            r = tokens / U - 1 repetitions and R = 15.39 (Muennighoff et al. 2023, arXiv 2305.16264, equation 5).
        quality: worth of one token beside one of the data that the law was fitted on; a judgement, 1 by default.
    """
    tokens, quality = positive("tokens", tokens), positive("quality", quality, most=100.0)
    if unique_tokens is None or tokens <= positive("unique_tokens", unique_tokens):
        return quality * tokens
    repetitions = tokens / unique_tokens - 1.0
    return quality * unique_tokens * (1.0 + REPEAT_HALF_WORTH * (1.0 - math.exp(-repetitions / REPEAT_HALF_WORTH)))


def hyperparameter_guides(parameters, tokens):
    """Peak learning rate and batch (tokens) that two published fits suggest: {name: {learning_rate, batch_tokens, source}}.

    They were fitted on decoder-only models under AdamW; take them as the centre of a sweep. "deepseek" reads compute as
    6 N D with N without embeddings.
    """
    flops = 6.0 * positive("parameters", parameters) * positive("tokens", tokens)
    return {
        "deepseek": {
            "learning_rate": 0.3118 * flops**-0.1250,
            "batch_tokens": 0.2920 * flops**0.3271,
            "source": "Bi et al. 2024, arXiv 2401.02954, 3.1",
        },
        "steplaw": {
            "learning_rate": 1.79 * parameters**-0.713 * tokens**0.307,
            "batch_tokens": 0.58 * tokens**0.571,
            "source": "Li et al. 2025, arXiv 2503.04715",
        },
    }
