"""A rule of what a config may not be, and the shapes that rules often have.

Notable here: a rule is data, so that the tests break each one alone and the documentation lists them all.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """`broken(config)` is true where the rule is violated; `text` is formatted with the config as `c`."""

    name: str
    broken: Callable
    text: str


# what None says, at the end of a refusal
OFF, DERIVED = "; leave it None to switch it off", "; None gives its default"


def positive(name, none=""):
    """`none`: what None means for a field that may be None, `OFF` or `DERIVED`."""
    return Rule(
        f"{name} is positive",
        lambda c: getattr(c, name) is not None and getattr(c, name) <= 0,
        f"{name}={{c.{name}}} must be greater than zero{none}",
    )


def only_with(name, owner, value, unset=None):
    """`name` would silently do nothing unless field `owner` is `value`."""
    return Rule(
        f"{name} needs {owner}={value}",
        lambda c: getattr(c, name) != unset and getattr(c, owner) != value,
        f"{name}={{c.{name}}} has no effect with {owner}={{c.{owner}!r}}; set {owner}={value!r} or leave {name} at {unset}",
    )


def only_with_any(name, owner, values, unset=None):
    """As `only_with`, for a field `owner` of which several values will do."""
    return Rule(
        f"{name} needs {owner} in {'/'.join(values)}",
        lambda c: getattr(c, name) != unset and getattr(c, owner) not in values,
        f"{name}={{c.{name}}} has no effect with {owner}={{c.{owner}!r}}; set {owner} to one of {list(values)}, or leave "
        f"{name} at {unset}",
    )


def only_with_experts(name, unset):
    return Rule(
        f"{name} needs experts",
        lambda c: getattr(c, name) != unset and not c.has_experts,
        f"{name}={{c.{name}}} has no effect without experts; set num_experts, or leave {name} at {unset}",
    )
