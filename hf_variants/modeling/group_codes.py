"""What quantized weights of every format here are: integer codes, and a zero point and a scale per group of inputs."""

from dataclasses import dataclass

import torch

LEVELS = 15


@dataclass
class GroupCodes:
    """A quantised matrix: `codes` uint8 [out, in], `zeros` uint8 [out, in / group], `scales` [out, in / group]; codes lie in
    0..`top`."""

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    group: int
    top: int = LEVELS

    def dequantize(self):
        """The float32 matrix [out, in] that the codes stand for."""
        zeros, scales = self.zeros.unsqueeze(-1), self.scales.float().unsqueeze(-1)
        return ((grouped(self.codes, self.group).float() - zeros) * scales).flatten(-2)


def grouped(weight, group):
    """View [..., out, in] as [..., out, in / group, group]."""
    return weight.unflatten(-1, (-1, group))
