"""Equal budgets: what a variant costs, and the width or number of steps that makes it cost as much as the base.

    parameters, active_parameters    a feed-forward width is adjusted
    flops                            the number of optimizer steps: 3 x forward FLOPs per token x tokens
    kv_bytes                         the latent of MLA, else the width of a head

Notable here: everything is counted by `analysis` from the config, before any model is built, and what cannot be matched within
the tolerance is refused.
"""

from dataclasses import asdict, dataclass

from ..analysis import count_parameters, flops_per_token, kv_cache_size

# match -> the attribute of `Costs` that must be equal
MEASURED = {
    "parameters": "parameters",
    "active_parameters": "active_parameters",
    "flops": "training_flops",
    "kv_bytes": "kv_bytes_per_token",
}


@dataclass(frozen=True)
class Costs:
    """What a variant costs.

    Attributes:
        parameters, active_parameters: total, and those that one token meets.
        flops_per_token: forward, in a full row of the recipe's length.
        kv_bytes_per_token: of a cache in 2-byte numbers, mean over a row of the recipe's length.
        steps, tokens: optimizer steps, and tokens of all of them.
        training_flops: 3 x flops_per_token x tokens (forward, and a backward of twice that).
    """

    parameters: int
    active_parameters: int
    flops_per_token: float
    kv_bytes_per_token: float
    steps: int
    tokens: int
    training_flops: float

    def to_dict(self):
        return asdict(self)


def costs(config, length, rows, steps):
    """`Costs` of a config trained on `steps` optimizer steps of `rows` rows of `length` tokens."""
    counts, flops = count_parameters(config), flops_per_token(config, length).total
    tokens = steps * rows * length
    return Costs(
        counts.total,
        counts.active,
        flops,
        kv_cache_size(config, length).bytes / length,
        steps,
        tokens,
        3 * flops * tokens,
    )


def match_key(spec, config):
    """The dotted key that is adjusted for `spec.match` in a variant with this config, or None.

    Raises:
        ValueError: for a `match_by` that has no effect, or that the budget cannot be reached by.
    """
    if spec.match == "none":
        if spec.match_by is not None:
            raise ValueError(f"match_by={spec.match_by!r} has no effect with match='none'")
        return None
    if spec.match == "flops":
        if spec.match_by not in (None, "trainer.max_steps"):
            raise ValueError(f"match_by={spec.match_by!r}: equal FLOPs are reached by trainer.max_steps")
        return "trainer.max_steps"
    if spec.match_by is not None:
        return spec.match_by if "." in spec.match_by else f"model.{spec.match_by}"
    if spec.match == "kv_bytes":
        return "model.kv_lora_rank" if config.attention_type == "mla" else "model.head_dim"
    return "model.moe_intermediate_size" if _all_sparse(config) else "model.intermediate_size"


def matched_steps(costs_of_variant, target_flops):
    """Optimizer steps of a variant at the training FLOPs of the base, at least one."""
    return max(1, round(costs_of_variant.steps * target_flops / costs_of_variant.training_flops))


def matched_width(measure, target, multiple):
    """The multiple of `multiple` for which `measure(width)`, which grows with it, is nearest to `target`.

    Raises:
        ValueError: where even the smallest width costs more than twice the target.
    """
    low, high = multiple, multiple
    if measure(low) > 2 * target:
        raise ValueError(f"the smallest value, {low}, costs {measure(low):,.4g}, more than twice the {target:,.4g} to match")
    while measure(high) < target:
        low, high = high, 2 * high
        if high > 1 << 24:
            raise ValueError(f"no value reaches {target:,.4g}: the cost does not grow with it")
    while high - low > multiple:
        middle = (low + high) // 2 // multiple * multiple
        low, high = (middle, high) if measure(middle) < target else (low, middle)
    return min((low, high), key=lambda width: abs(measure(width) - target))


def check_match(name, key, value, found, target, spec):
    """Raise a ValueError where `found` differs from `target` by more than the tolerance."""
    difference = found / target - 1
    if abs(difference) > spec.tolerance:
        raise ValueError(
            f"variant {name!r}: the nearest {key}={value} gives {MEASURED[spec.match]}={found:,.6g}, {difference:+.2%} from "
            f"the base's {target:,.6g}, more than tolerance={spec.tolerance}; lower match_multiple, adjust another key by "
            "match_by, or raise the tolerance"
        )


def _all_sparse(config):
    return config.has_experts and all(plan.mlp == "sparse" for plan in config.layer_plan())
