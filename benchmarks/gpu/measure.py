"""How a section is measured: the sides proved equal, each one's peak alone, then their speed in turn.

Notable here: every measurement is guarded by itself, so a backend that fails leaves the numbers of the others; what failed
stands in the result. Rounds go A B C, C B A, ..., so that a card that grows warm or is shared slows all alike; reported are
the medians of a side's seconds and of its ratios to native, round by round.
"""

import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from benchmarks.gpu.sides import NATIVE, Side, as_dtype, convert, draw_native
from benchmarks.pairs import random_ids

# Of the largest number: how far fp32 may differ; in the dtype that is measured, how many times native's own difference.
FP32_TOLERANCE, ROUNDING_FACTOR, ROUNDING_FLOOR = 1e-4, 3.0, 1e-3


class Clock:
    """How long the run may go on.

    Args:
        seconds: none begins a measurement after so many.
    """

    def __init__(self, seconds):
        self.seconds, self.began = seconds, time.perf_counter()

    def left(self):
        return self.seconds - (time.perf_counter() - self.began)

    def is_over(self):
        return self.left() <= 0

    def note(self):
        return f"{self.seconds:.0f} seconds were over"


def guarded(call, card):
    """(what a call returned, None), or (None, why it failed), with the memory of the failed call given back."""
    try:
        return call(), None
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        why = f"{type(error).__name__}: {error}"[:500]
    try:
        card.release()
    except RuntimeError as error:  # the device may be lost
        why += f" (then {error})"[:200]
    return None, why


def difference(found, reference):
    """{name: largest difference, relative to the largest number of the reference}."""
    far = {}
    for name, tensor in reference.items():
        value, tensor = found[name].float().to(tensor.device), tensor.float()
        far[name] = ((value - tensor).abs().max() / tensor.abs().max().clamp(min=1e-12)).item()
    return far


@dataclass(frozen=True)
class Section:
    """One comparison.

    Attributes:
        title: what is compared, in words.
        config: whether tiny -> native config.
        shape: whether tiny -> (batch, tokens) of the ids.
        call: whether tiny -> what is called (`calls.py`).
        native: attention of the native side.
        sides: {name of one of ours: its attention}.
        compiled: whether the forward of every side goes through `torch.compile`.
        parks: whether peaks are taken; recorded CUDA graphs hold the addresses of weights, which parking changes.
    """

    title: str
    config: Callable
    shape: Callable
    call: Callable
    native: str = "sdpa"
    sides: dict = field(default_factory=lambda: {"ours": "sdpa"})
    compiled: bool = False
    parks: bool = True


def check(section, reference, sides, card, ids, call, failed):
    """{side: {"fp32", "measured", "native_measured", "agrees"}}: differences from `reference`, the native model in fp32.

    "fp32" is of ours in fp32, "measured" of ours in the dtype that is measured, "native_measured" of native in that dtype:
    ours is judged by native's own rounding.
    """
    expected, why = guarded(lambda: Side(NATIVE, reference, call, ids).probe(), card)
    if why is not None:
        failed["check native fp32"] = why
        return {}
    found = {}
    for name, attention in section.sides.items():
        twin, why = guarded(lambda attention=attention: convert(reference, card.device, attention), card)
        if why is None:
            far, why = guarded(lambda twin=twin: difference(Side("ours", twin, call, ids).probe(), expected), card)
        if why is None:
            found[name] = {"fp32": far}
        else:
            failed[f"check {name} fp32"] = why
        twin = None
        card.release()
    own = None
    for name, side in sides.items():
        far, why = guarded(lambda side=side: difference(side.probe(), expected), card)
        if why is not None:
            failed[f"check {name} {card.dtype}"] = why
        elif name == NATIVE:
            own = far
        else:
            found.setdefault(name, {}).update(measured=far, native_measured=own)
    for numbers in found.values():
        numbers["agrees"] = agrees(numbers)
    return found


def agrees(numbers):
    """Whether what was compared agrees: True or False; None where something could not be compared."""
    if any(numbers.get(name) is None for name in ("fp32", "measured", "native_measured")):
        return None
    rounding = {name: max(ROUNDING_FACTOR * far, ROUNDING_FLOOR) for name, far in numbers["native_measured"].items()}
    exact = all(far <= FP32_TOLERANCE for far in numbers["fp32"].values())
    return exact and all(far <= rounding[name] for name, far in numbers["measured"].items())


def build(section, card, tiny, failed):
    """(native in fp32, {side: `Side`} in the card's dtype, ids, call); a side that cannot be built is left out."""
    config, call = section.config(tiny), section.call(tiny)
    ids = random_ids(config, *section.shape(tiny)).to(card.device)
    reference = draw_native(config, card.device, section.native)
    native = as_dtype(reference, card.dtype, card.device, section.native)
    sides = {NATIVE: Side(NATIVE, native, call, ids)}
    for name, attention in section.sides.items():
        model, why = guarded(lambda attention=attention: convert(native, card.device, attention), card)
        if why is None:
            sides[name] = Side(name, model, call, ids)
        else:
            failed[f"build {name}"] = why
    return reference, sides, ids, call


def peaks(sides, card, clock, record, failed):
    """Each side's peak with its own model and state alone on the card; the others wait on the host."""
    if not card.is_cuda:
        return
    for side in sides.values():
        side.park()
    for name, side in list(sides.items()):
        if clock.is_over():
            failed[f"peak {name}"] = clock.note()
        else:
            side.fetch(card.device)
            card.release()
            found, why = guarded(lambda side=side: card.peak(side.run, side.clear), card)
            if why is None:
                record[name].update(found)
            else:
                failed[f"peak {name}"] = why
            side.park()
        card.release()
    for side in sides.values():
        side.fetch(card.device)


def speeds(sides, card, clock, failed, rounds=7, seconds=10.0, warm_ups=2):
    """{side: [seconds of each round]} of the sides that run; every round is complete, of all that still run."""
    taken = {}
    for name, side in sides.items():
        if clock.is_over():
            failed[f"speed {name}"] = clock.note()
            continue
        _, why = guarded(lambda side=side: [card.seconds(side.run) for _ in range(warm_ups)], card)
        if why is None:
            taken[name] = []
        else:
            failed[f"speed {name}"] = why
    began = time.perf_counter()
    for number in range(rounds):
        if number and clock.is_over() or number >= 3 and time.perf_counter() - began > seconds:
            break
        for name in list(taken) if number % 2 == 0 else list(reversed(taken)):
            took, why = guarded(lambda name=name: card.seconds(sides[name].run), card)
            if why is None:
                taken[name].append(took)
            else:
                failed[f"speed {name}"] = why
                del taken[name]
    return {name: times for name, times in taken.items() if times}


def rates(sides, taken, limits):
    """{side: numbers} of the seconds of each round: units per second, the ratio to native, shares of the card's limits."""
    found = {}
    for name, times in taken.items():
        side, seconds = sides[name], statistics.median(times)
        numbers = {"seconds": seconds, "rounds": len(times), "per_second": side.call.units(side.ids) / seconds}
        if name != NATIVE and NATIVE in taken:
            numbers["speed"] = statistics.median(a / b for a, b in zip(taken[NATIVE], times, strict=False))
        found[name] = {**numbers, **shares(side, seconds, limits)}
    return found


def shares(side, seconds, limits):
    """What a call computes or reads in its seconds, as a share of what the card did in this run and of its data sheet."""
    work = side.call.work(side.model.config, side.ids, limits["bytes_per_number"])
    found = {}
    if "flops" in work:
        rate = work["flops"] / seconds / 1e12
        sheet = limits["sheet_tflops"]
        found = {"tflops": rate, "of_product": rate / limits["matrix_tflops"]}
        found["mfu"] = rate / (limits["matrix_tflops"] if sheet is None else sheet)
    if "bytes" in work:
        found["of_memory"] = work["bytes"] / seconds / 1e9 / limits["memory_gb_per_second"]
    return found


def measure(section, card, clock, limits, tiny, keep):
    """All numbers of a section: {"title", "sides": {side: numbers}, "failed": {what: why}}.

    keep: called with what is known so far after every measurement.
    """
    result = {"title": section.title, "sides": {}, "failed": {}}
    record, failed = result["sides"], result["failed"]
    built, why = guarded(lambda: build(section, card, tiny, failed), card)
    if why is not None:
        failed["build"] = why
        return result
    reference, sides, ids, call = built
    del built
    record.update({name: {} for name in sides})
    for name, numbers in check(section, reference, sides, card, ids, call, failed).items():
        record.setdefault(name, {})["check"] = numbers
    del reference
    card.release()
    keep(result)
    if section.compiled:
        for side in sides.values():
            side.model.compile(backend="eager" if tiny else "inductor")
    if section.parks:
        peaks(sides, card, clock, record, failed)
        keep(result)
    for name, numbers in rates(sides, speeds(sides, card, clock, failed), limits).items():
        record[name].update(numbers)
    compare_tokens(sides, card, record, failed)
    keep(result)
    return result


def compare_tokens(sides, card, record, failed):
    """Of generations: the share of tokens that are native's own; in bf16 a near tie may turn one, and all behind it."""
    if sides[NATIVE].call.trains:
        return
    made = {}
    for name in (name for name in sides if "seconds" in record[name]):
        tokens, why = guarded(sides[name].run, card)
        if why is not None:
            failed[f"tokens {name}"] = why
        elif isinstance(tokens, torch.Tensor):
            made[name] = tokens
    for name, tokens in made.items():
        if name != NATIVE and NATIVE in made:
            record[name]["same_tokens"] = (tokens == made[NATIVE]).float().mean().item()
