"""Tables of sinusoids that native classes keep among their weights, and that ours computes.

Notable here: a table is left out on the way in only where it holds the very sinusoids; it is computed again on the way back.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DropSinusoids:
    """Leaves out the second of two tensors, a table of sinusoids of `shape(config)`: rows and width."""

    shape: Callable

    def into(self, tensors, config):
        kept, table = tensors
        same = table.device.type == "meta" or torch.equal(table, sinusoid_table(*table.shape).to(table.dtype))
        # zeros stand for the gradient, of which there is none
        if not same and bool(table.any()):
            raise ValueError("its table of positions holds other values than the sinusoids that ours computes")
        return [kept]

    def back(self, tensors, config):
        table = sinusoid_table(*self.shape(config))
        return [tensors[0], table.to(tensors[0].dtype).to(tensors[0].device)]


def sinusoid_table(rows, width):
    """All sines, then all cosines, as the native classes make them: in double precision, then rounded (fp32 [rows, width])."""
    places = torch.arange(rows, dtype=torch.float64).unsqueeze(1)
    angles = places / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.cat((angles.sin(), angles.cos()), dim=1).float()
