"""Tensors by name that are read, rearranged or computed when asked for, so that a model never lies in memory as a whole.

Notable here: every mapping knows the names, shapes and dtypes of what it would give (`meta`, tensors on torch's meta device)
before a byte is read, so a checkpoint that does not fit is refused before anything is written. A `Stage` keeps the outputs of
one step alone, each until it is taken. A mapping serves one thread; `again` gives another thread a reader of its own.
"""

import copy
import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

# Bytes compared at a time by numpy: what comparing makes of them stays in a processor's nearest cache.
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Step:
    """Some tensors into others: `compute({name: tensor of sources})` gives {name: tensor}; or one into itself, renamed."""

    sources: tuple
    compute: Callable
    renames: bool = False


class LazyTensors(Mapping):
    """Base: a mapping of names to tensors whose `meta` holds the same names on the meta device, in the order of reading."""

    meta: dict

    def __iter__(self):
        return iter(self.meta)

    def __len__(self):
        return len(self.meta)

    def __contains__(self, name):
        return name in self.meta

    def again(self):
        """An independent reader of the same tensors."""
        other = copy.copy(self)
        if hasattr(self, "below"):
            other.below = self.below.again()
        other._start()
        return other

    def _start(self):
        """Begin with nothing held."""

    def keep(self):
        """Hold on to what another pass over the same tensors would have to map again, until `forget`."""
        if hasattr(self, "below"):
            self.below.keep()

    def forget(self):
        """Let go of whatever is held between two reads."""
        if hasattr(self, "below"):
            self.below.forget()

    def lies(self, name):
        """Whether a tensor is given as it lies in a file or in memory, which costs nothing each time."""
        return False

    def all_lie(self):
        return all(self.lies(name) for name in self)


class MemoryTensors(LazyTensors):
    """The tensors of a state dict."""

    def __init__(self, state):
        self._state = state
        self.meta = {name: tensor.to("meta") for name, tensor in state.items()}

    def __getitem__(self, name):
        return self._state[name].detach().cpu()

    def lies(self, name):
        return self._state[name].device.type == "cpu"


class Stage(LazyTensors):
    """What steps make of the tensors below.

    Args:
        steps: list of `Step`; each is computed once when its outputs are read in order.
        below: LazyTensors.

    Raises:
        ValueError: where the steps fail on the shapes, or two make the same tensor.
    """

    def __init__(self, steps, below):
        self.below, self.meta, self._step_of = below, {}, {}
        for step in steps:
            for name, tensor in step.compute({name: below.meta[name] for name in step.sources}).items():
                if name in self.meta:
                    raise ValueError(
                        f"tensor {name} would be made twice, from {step.sources} and {self._step_of[name].sources}"
                    )
                self.meta[name], self._step_of[name] = tensor, step
        self._start()

    def _start(self):
        self._last, self._made = None, {}

    def forget(self):
        self._start()
        super().forget()

    def __getitem__(self, name):
        step = self._step_of[name]
        if step.renames:
            return self.below[step.sources[0]]
        if self._last is not step or name not in self._made:
            self._made = {}
            self._made = step.compute({source: self.below[source] for source in step.sources})
            self._last = step
        return self._made.pop(name)

    def lies(self, name):
        return self.only_renamed(name) and self.below.lies(self._step_of[name].sources[0])

    def only_renamed(self, name):
        """Whether a tensor is one of those below under another name."""
        return self._step_of[name].renames


class Selected(LazyTensors):
    """The tensors below but for some names."""

    def __init__(self, below, without):
        self.below = below
        self.meta = {name: tensor for name, tensor in below.meta.items() if name not in without}

    def __getitem__(self, name):
        return self.below[name]

    def lies(self, name):
        return self.below.lies(name)


class Renamed(LazyTensors):
    """The tensors below, some under other names: `{name here: name below}`."""

    def __init__(self, below, names):
        self.below, self._names = below, names
        here = {old: new for new, old in names.items()}
        self.meta = {here.get(name, name): tensor for name, tensor in below.meta.items()}

    def __getitem__(self, name):
        return self.below[self._names.get(name, name)]

    def lies(self, name):
        return self.below.lies(self._names.get(name, name))


class Cast(LazyTensors):
    """The tensors below in the dtype that `dtype_of(name)` says; what holds no floats stays."""

    def __init__(self, below, dtype_of):
        self.below, self._dtype_of = below, dtype_of
        self.meta = {name: self._cast(name, tensor) for name, tensor in below.meta.items()}

    def __getitem__(self, name):
        before = self.below[name]
        if before.dtype == self.meta[name].dtype:
            return before
        after = self._cast(name, before)
        if after.dtype == torch.float16 and after.isinf().any() and not before.isinf().any():
            raise ValueError(
                f"{name} holds values up to {before.abs().max().item():.3g}, which float16 cannot hold (65504 at most); ask "
                "for dtype='bfloat16' or 'float32'"
            )
        return after

    def lies(self, name):
        return self.meta[name].dtype == self.below.meta[name].dtype and self.below.lies(name)

    def _cast(self, name, tensor):
        return tensor.to(self._dtype_of(name)) if tensor.is_floating_point() else tensor


def raw_bytes(tensor):
    """The memory of a contiguous tensor on the CPU, as numpy bytes that share it."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def _c_memcmp():
    """C's comparison of memory: one pass without Python's lock, twice as fast as torch's; None where it cannot be called."""
    try:
        found = ctypes.CDLL(None).memcmp
    except (TypeError, AttributeError, OSError):
        return None
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return found


_MEMCMP = _c_memcmp()


def same_bits(first, second):
    """Whether two tensors are equal in dtype, shape and every bit (a NaN equals itself)."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    first, second = (tensor.detach().contiguous().cpu() for tensor in (first, second))
    if _MEMCMP is not None:
        return _MEMCMP(first.data_ptr(), second.data_ptr(), first.numel() * first.element_size()) == 0
    first, second = raw_bytes(first), raw_bytes(second)
    starts = range(0, len(first), _CHUNK)
    return all(np.array_equal(first[start : start + _CHUNK], second[start : start + _CHUNK]) for start in starts)
