"""Weight rules: which tensors of a native state dict become which tensors of ours, in one object for both directions.

Notable here: a rule is two tuples of name patterns and a chain of reversible operations, so the way in and the way out
cannot drift apart. In a pattern `*` stands for one part of a dotted name and `**` for any rest; what they match is
carried over. Every tensor must be taken by exactly one rule; what is left over, or lacks a partner, is an error that
names it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from hf_variants.convert.stages import Step
from hf_variants.convert.tensor_ops import Stack

_SHOWN = 8


@dataclass(frozen=True)
class WeightRule:
    """Tensors named by `native` become those named by `ours` through `ops`, and back by their inverses.

    `native` may be a function of a config of ours, where the number of tensors depends on it. `when(config)` says whether
    the rule applies, for families whose names follow their config.
    """

    native: tuple | Callable
    ours: tuple
    ops: tuple = ()
    when: Callable = lambda config: True

    def resolved(self, config):
        """The rule for one config, its names spelled out."""
        return replace(self, native=self.native(config)) if callable(self.native) else self

    def without_prefixes(self, native, ours):
        """The rule for models whose names lack these prefixes."""
        shorter = tuple(name.removeprefix(native) for name in self.native)
        return replace(self, native=shorter, ours=tuple(name.removeprefix(ours) for name in self.ours))

    def transform(self, tensors, config, back):
        """The tensors of one match, rearranged (`back`: from ours to native)."""
        for op in reversed(self.ops) if back else self.ops:
            tensors = (op.back if back else op.into)(tensors, config)
        return tensors


def keep(*names):
    """Tensors that both sides name and store alike."""
    return [WeightRule((name,), (name,)) for name in names]


def rename(native, ours):
    """Tensors that differ in name only."""
    return WeightRule((native,), (ours,))


def rearrange(native, ours, *ops):
    """Tensors that differ in layout; `native` and `ours` are one pattern or a tuple of patterns each."""
    as_tuple = lambda names: names if isinstance(names, tuple) else (names,)  # noqa: E731
    return WeightRule(as_tuple(native), as_tuple(ours), ops)


def stacked(native, ours, count):
    """Tensors numbered at `{}` in the native name, `count(config)` of them, become one with a new first dimension."""
    return WeightRule(lambda config: tuple(native.format(index) for index in range(count(config))), (ours,), (Stack(),))


def only_if(condition, *rules):
    """Rules that apply to configs of ours for which `condition(config)` holds."""
    return [replace(rule, when=condition) for rule in rules]


def apply_rules(rules, state, config, back=False):
    """Rewrite a state dict by `rules`.

    Args:
        state: names to tensors (weights, or gradients: every operation is a permutation, so gradients map alike).
        config: VariantsConfig that gives the sizes.
        back: from ours to native.

    Returns:
        dict of names to tensors, contiguous; memory may be shared with `state`.

    Raises:
        ValueError: naming tensors that no rule takes, or whose partners are missing, or that cannot be split.
    """
    result = {}
    for step in plan_rules(rules, state, config, back):
        result.update(step.compute({name: state[name] for name in step.sources}))
    return result


def plan_rules(rules, names, config, back=False):
    """The steps by which `rules` rewrite tensors of these names, in the order of the names; arguments as in `apply_rules`.

    Returns:
        list of `stages.Step`.

    Raises:
        ValueError: naming tensors that no rule takes, or whose partners are missing.
    """
    left, steps = dict.fromkeys(names), []
    order = {name: index for index, name in enumerate(names)}
    for rule in [rule.resolved(config) for rule in rules if rule.when(config)]:
        sources, targets = (rule.ours, rule.native) if back else (rule.native, rule.ours)
        for binding in _bindings(sources, left):
            taken = tuple(_fill(pattern, binding) for pattern in sources)
            missing = [name for name in taken if name not in left]
            if missing:
                raise ValueError(f"tensors {missing} are missing beside {[name for name in taken if name in left]}")
            for name in taken:
                del left[name]
            made = tuple(_fill(pattern, binding) for pattern in targets)
            steps.append(Step(taken, _computation(rule, taken, made, config, back), renames=not rule.ops))
    if left:
        raise ValueError(f"no rule of this family takes the {len(left)} tensors {_some(left)}")
    return sorted(steps, key=lambda step: order[step.sources[0]])


def _computation(rule, taken, made, config, back):
    def compute(tensors):
        try:
            rearranged = rule.transform([tensors[name] for name in taken], config, back)
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"tensors {list(taken)} cannot be converted: {error}") from error
        return dict(zip(made, (tensor.contiguous() for tensor in rearranged), strict=True))

    return compute


def check_state(state, expected, what):
    """Refuse a state dict whose names or shapes differ from `expected`, naming them in a ValueError."""
    problems = []
    for label, names in (("missing", expected.keys() - state.keys()), ("left over", state.keys() - expected.keys())):
        if names:
            problems.append(f"{len(names)} {label}: {_some(names)}")
    for name in sorted(expected.keys() & state.keys()):
        if state[name].shape != expected[name].shape:
            problems.append(f"{name} has shape {tuple(state[name].shape)} instead of {tuple(expected[name].shape)}")
    if problems:
        raise ValueError(f"the tensors do not fit {what}: {'; '.join(problems[:_SHOWN])}")


def _some(names):
    names = sorted(names)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _regex(pattern):
    parts = re.split(r"(\*\*|\*)", pattern)
    return re.compile("".join({"**": "(.+)", "*": "([^.]+)"}.get(part, re.escape(part)) for part in parts))


def matches(pattern, name):
    """Whether a name has the form of a pattern."""
    return _regex(pattern).fullmatch(name) is not None


def _bindings(patterns, state):
    """What the stars stand for, once per group of tensors, in the order of the state dict."""
    found = {}
    for pattern in patterns:
        regex = _regex(pattern)
        for name in state:
            match = regex.fullmatch(name)
            if match:
                found.setdefault(match.groups())
    return list(found)


def _fill(pattern, binding):
    values = iter(binding)
    return re.sub(r"\*\*|\*", lambda star: next(values), pattern)
