"""One measured comparison, and how it is measured.

Notable here: the sides of a case run in turn, round by round, in one process on the same weights, so that a busy machine slows
both; what is reported is the median of the rounds' ratios, beside the ratio of processor seconds, which waiting for a busy
core does not lengthen. Peaks are taken per side in a process of its own (`peak.py`).
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

REFERENCE, OURS = "native", "ours"


@dataclass
class Ready:
    """A side that can be run.

    Attributes:
        run: one measured call; may return a tensor that the sides must agree on.
        units: tokens (or loads) of one call.
        prepare: undone and done again before each call, outside of what is timed.
    """

    run: Callable
    units: float = 1.0
    prepare: Callable = staticmethod(lambda: None)


@dataclass
class Case:
    """One row of the table.

    Attributes:
        name: as given on the command line.
        title: what is compared, in words.
        build: side names -> {side: `Ready`}, the same weights in each.
        sides: what `build` can make; the first is the reference.
        targets: {"speed" or "peak" or "cpu": bound}; speed is at least, peak at most.
        unit: what `Ready.units` counts.
        flops, bytes: matrix FLOPs and bytes read by one call of ours, for the share of the machine's limit; a number, or a
            function that counts it.
        dtype: `fp32` or `bf16`.
        peak: whether peak memory is taken.
        rounds, seconds: at most so many rounds, and none begun after so many seconds.
        tolerance: how far what the calls return may differ, relative to its largest number; None where they return nothing.
        also: {side: `Ready`} after the rounds -> {name: further number}, which targets may bound.
    """

    name: str
    title: str
    build: Callable
    sides: tuple = (REFERENCE, OURS)
    targets: dict = field(default_factory=dict)
    unit: str = "tokens"
    flops: float | Callable | None = None
    bytes: float | Callable | None = None
    dtype: str = "fp32"
    peak: bool = False
    rounds: int = 5
    seconds: float = 20.0
    tolerance: float | None = 1e-4
    also: Callable | None = None


def timed(ready):
    """(wall seconds, processor seconds, what the call returned) of one call."""
    ready.prepare()
    wall, cpu = time.perf_counter(), time.process_time()
    value = ready.run()
    return time.perf_counter() - wall, time.process_time() - cpu, value


def alternate(sides, rounds, seconds):
    """Run every side in turn. Returns ({side: [(wall, cpu)]}, {side: first returned value}).

    The first round warms up and is not timed; the order turns around from round to round.
    """
    values, taken, names = {}, {name: [] for name in sides}, list(sides)
    for name in names:
        values[name] = timed(sides[name])[2]
    began = time.perf_counter()
    for number in range(rounds):
        if number >= 2 and time.perf_counter() - began > seconds:
            break
        gc.collect()
        for name in names if number % 2 == 0 else reversed(names):
            taken[name].append(timed(sides[name])[:2])
    return taken, values


def far(value, reference):
    """Largest difference of two tensors relative to the largest number of the second (1 at least)."""
    value, reference = (torch.as_tensor(part).detach().float() for part in (value, reference))
    return ((value - reference).abs().max() / reference.abs().max().clamp(min=1)).item()


def measure(case):
    """Numbers of one case: {"sides": {side: per second}, "speed", "cpu": ratios of ours to the reference, ...}.

    Raises:
        ValueError: where ours and the reference do not compute the same.
    """
    sides = case.build(case.sides)
    taken, values = alternate(sides, case.rounds, case.seconds)
    found = {"sides": {}, "rounds": len(taken[case.sides[0]])}
    for name, times in taken.items():
        found["sides"][name] = {
            "per_second": sides[name].units / statistics.median(wall for wall, _ in times),
            "seconds": statistics.median(wall for wall, _ in times),
            "cpu_seconds": statistics.median(cpu for _, cpu in times),
        }
    reference, ours = taken[case.sides[0]], taken[OURS]
    scale = sides[OURS].units / sides[case.sides[0]].units
    found["speed"] = statistics.median(scale * a[0] / b[0] for a, b in zip(reference, ours, strict=True))
    found["cpu"] = statistics.median(scale * a[1] / max(b[1], 1e-9) for a, b in zip(reference, ours, strict=True))
    if case.also is not None:
        found.update(case.also(sides))
    if values[OURS] is not None and case.tolerance is not None:
        found["difference"] = far(values[OURS], values[case.sides[0]])
        if not found["difference"] <= case.tolerance:
            raise ValueError(
                f"{case.name}: ours and {case.sides[0]} differ by {found['difference']:.2e}, more than {case.tolerance}; a "
                "speed of wrong numbers is not measured"
            )
    return found
