"""Rounding in which the weights not yet rounded make up for the error of those that are (GPTQ, Frantar et al. 2022,
arXiv:2210.17323).

Notable here: the grid of every group (scale and zero point) is fixed beforehand, so what is written stays plain AWQ; columns
are taken in the order of their inputs' energy; an output whose compensated codes are worse on the calibration tokens than
nearest ones keeps the nearest, so rounding is never worse than to nearest on its own loss.
"""

import torch

from ..modeling.group_codes import GroupCodes
from .rounding import grid, group_range

# Added to the diagonal of X^T X, relative to its mean: few tokens must not be fitted where they say nothing.
DAMPING = 0.05
_BLOCK = 64


def compensated_codes(weight, gram, group, low=None, high=None, *, top=15, symmetric=False, damping=DAMPING):
    """Code `weight` [out, in] for inputs with X^T X = `gram` [in, in].

    Args:
        low, high: ends of every group, [out, in / group]; None takes the extremes.
        top: the highest code.
        symmetric: whether zero stands in the middle of the codes.

    Returns:
        GroupCodes.
    """
    weight = weight.float()
    if low is None:
        low, high = group_range(weight, group)
    zeros, scales = grid(low, high, top, symmetric)
    # one row per input column, so that the steps below read contiguous memory
    columns = weight.t().contiguous()
    step, zero = (tensor.t().repeat_interleave(group, 0) for tensor in (scales, zeros))
    nearest = (columns / step).round_().add_(zero).clamp_(0, top)
    codes = nearest.clone()
    factor, order = _factor(gram, damping)
    if factor is not None:
        codes[order] = _sweep(columns[order], step[order], zero[order], factor, top)
        _keep_better(codes, nearest, columns, step, zero, gram)
    return GroupCodes(codes.t().contiguous().to(torch.uint8), zeros.to(torch.uint8), scales.half(), group, top)


def _factor(gram, damping):
    """(upper Cholesky factor of the inverse of the damped matrix in its order, the order); (None, None) where it has none."""
    energy = gram.diagonal()
    order = energy.argsort(descending=True)
    damped = gram[order][:, order].clone()
    damped.diagonal().add_(damping * energy.mean().clamp(min=1e-12))
    lower, failed = torch.linalg.cholesky_ex(damped)
    if failed:
        return None, None
    upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
    return (None, None) if failed or not torch.isfinite(upper).all() else (upper, order)


def _sweep(columns, step, zero, factor, top):
    """Codes [in, out]: each column is rounded, and its error is taken from the columns that follow."""
    rest, codes = columns.clone(), torch.empty_like(columns)
    for start in range(0, len(columns), _BLOCK):
        stop = min(start + _BLOCK, len(columns))
        errors = torch.empty_like(rest[start:stop])
        for index in range(start, stop):
            value = rest[index]
            codes[index] = (value / step[index]).round_().add_(zero[index]).clamp_(0, top)
            error = (value - (codes[index] - zero[index]) * step[index]) / factor[index, index]
            rest[index + 1 : stop].addr_(factor[index, index + 1 : stop], error, alpha=-1)
            errors[index - start] = error
        rest[stop:].addmm_(factor[start:stop, stop:].t(), errors, alpha=-1)
    return codes


def _keep_better(codes, nearest, columns, step, zero, gram):
    """Put nearest codes back, in place, for outputs that they serve better."""
    losses = []
    for candidate in (codes, nearest):
        difference = (candidate - zero) * step - columns
        losses.append(((gram @ difference) * difference).sum(0))
    worse = ~(losses[0] <= losses[1])
    codes[:, worse] = nearest[:, worse]
