"""Reversible rearrangements of weight tensors.

Notable here: every operation stands beside its inverse and only copies or permutes numbers, so that a conversion there
and back gives bitwise equal tensors. An operation maps a list of tensors to a list of tensors; sizes come from the
config of ours.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers.utils import logging


@dataclass(frozen=True)
class Transpose:
    """Swap two dimensions of one tensor (GPT-2 stores linear weights as [in, out]); its own inverse."""

    dim0: int = 0
    dim1: int = 1

    def into(self, tensors, config):
        return [tensor.transpose(self.dim0, self.dim1) for tensor in tensors]

    back = into


@dataclass(frozen=True)
class Stack:
    """Tensors of one shape into one with a new first dimension."""

    def into(self, tensors, config):
        return [torch.stack(tensors)]

    def back(self, tensors, config):
        return list(tensors[0].unbind(0))


@dataclass(frozen=True)
class Split:
    """One tensor into parts along `dim`; `sizes(config)` lists their lengths. The inverse concatenates."""

    sizes: Callable
    dim: int = 0

    def into(self, tensors, config):
        (fused,) = tensors
        sizes = self.sizes(config)
        if sum(sizes) != fused.shape[self.dim]:
            raise ValueError(f"shape {tuple(fused.shape)} cannot be split into {list(sizes)} along dimension {self.dim}")
        return list(fused.split(sizes, dim=self.dim))

    def back(self, tensors, config):
        return [torch.cat(tensors, dim=self.dim)]


@dataclass(frozen=True)
class Join:
    """Two tensors of one shape concatenated along `dim`; the inverse halves (DBRX's gate and up)."""

    dim: int

    def into(self, tensors, config):
        return [torch.cat(tensors, dim=self.dim)]

    def back(self, tensors, config):
        return list(tensors[0].chunk(2, dim=self.dim))


@dataclass(frozen=True)
class Unflatten:
    """[n * m, ...] into [n, m, ...] with n = `count(config)` (DBRX's experts)."""

    count: Callable

    def into(self, tensors, config):
        return [tensor.reshape(self.count(config), -1, *tensor.shape[1:]) for tensor in tensors]

    def back(self, tensors, config):
        return [tensor.flatten(0, 1) for tensor in tensors]


@dataclass(frozen=True)
class SplitPerHead:
    """Rows ordered [head, part, head_dim] into one tensor per part, rows [head, head_dim] (BLOOM's fused q, k, v)."""

    parts: int = 3

    def into(self, tensors, config):
        (fused,) = tensors
        rows = fused.reshape(config.num_attention_heads, self.parts, -1, *fused.shape[1:])
        return [rows[:, part].reshape(-1, *fused.shape[1:]) for part in range(self.parts)]

    def back(self, tensors, config):
        heads = [tensor.reshape(config.num_attention_heads, -1, *tensor.shape[1:]) for tensor in tensors]
        return [torch.stack(heads, dim=1).reshape(-1, *tensors[0].shape[1:])]


@dataclass(frozen=True)
class SplitPerGroup:
    """Rows ordered [key-value head, (its query heads, k, v), head_dim] into q, k and v (Falcon).

    With one key-value head this is [all q | k | v], with as many as query heads it is [head, (q, k, v)].
    """

    def into(self, tensors, config):
        (fused,) = tensors
        groups, rest = config.num_key_value_heads, fused.shape[1:]
        rows = fused.reshape(groups, -1, config.head_dim, *rest)
        parts = rows.split([config.num_attention_heads // groups, 1, 1], dim=1)
        return [part.reshape(-1, *rest) for part in parts]

    def back(self, tensors, config):
        groups, rest = config.num_key_value_heads, tensors[0].shape[1:]
        return [torch.cat([part.reshape(groups, -1, config.head_dim, *rest) for part in tensors], dim=1).reshape(-1, *rest)]


@dataclass(frozen=True)
class SplitPerBlock:
    """Rows ordered [block, part, row] into one tensor per part, rows [block, row] (CodeGen's four blocks of q, v, k)."""

    blocks: int
    parts: int = 3

    def into(self, tensors, config):
        (fused,) = tensors
        rows = fused.reshape(self.blocks, self.parts, -1, *fused.shape[1:])
        return [rows[:, part].reshape(-1, *fused.shape[1:]) for part in range(self.parts)]

    def back(self, tensors, config):
        blocks = [tensor.reshape(self.blocks, -1, *tensor.shape[1:]) for tensor in tensors]
        return [torch.stack(blocks, dim=1).reshape(-1, *tensors[0].shape[1:])]


@dataclass(frozen=True)
class SwapHalves:
    """Swap the halves of each head's rows, which turns RoPE by -angle into RoPE by +angle; its own inverse (nanochat)."""

    def into(self, tensors, config):
        return [self._swapped(tensor, config.head_dim) for tensor in tensors]

    back = into

    def _swapped(self, tensor, head_dim):
        halves = tensor.reshape(-1, 2, head_dim // 2, *tensor.shape[1:])
        return halves.flip(1).reshape(tensor.shape)


@dataclass(frozen=True)
class DropDead:
    """Leaves out the second of two tensors, which natively feeds nothing (an untied BERT's); it is zero on the way back."""

    def into(self, tensors, config):
        kept, dead = tensors
        if dead.device.type != "meta" and bool(dead.any()):
            logging.get_logger(__name__).warning(
                f"a tensor of shape {tuple(dead.shape)} that feeds nothing natively (the bias outside the decoder of an "
                "untied head) is not zero; its values are left out"
            )
        return [kept]

    def back(self, tensors, config):
        return [tensors[0], torch.zeros_like(tensors[0])]


@dataclass(frozen=True)
class DropLeadingOne:
    """[1, n] into [n] (Ernie 4.5's selection bias)."""

    def into(self, tensors, config):
        return [tensor.squeeze(0) for tensor in tensors]

    def back(self, tensors, config):
        return [tensor.unsqueeze(0) for tensor in tensors]


@dataclass(frozen=True)
class Deinterleave:
    """Entries 0, 2, ... of `dim`, then 1, 3, ... (gpt-oss alternates gate and up); the inverse alternates them."""

    dim: int

    def into(self, tensors, config):
        return [torch.cat([self._every_second(tensor, start) for start in (0, 1)], dim=self.dim) for tensor in tensors]

    def back(self, tensors, config):
        return [
            torch.stack(tensor.chunk(2, dim=self.dim), dim=self.dim + 1).flatten(self.dim, self.dim + 1) for tensor in tensors
        ]

    def _every_second(self, tensor, start):
        return tensor.index_select(self.dim, torch.arange(start, tensor.shape[self.dim], 2, device=tensor.device))


def head_rows(config):
    """Rows of q, k and v of a fused projection."""
    q, kv = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    return [q, kv, kv]


def gate_and_up_rows(config):
    """Rows of gate and up of a fused feed-forward projection."""
    return [config.intermediate_size] * 2
