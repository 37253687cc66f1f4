"""The two searches of AWQ (Lin et al. 2023, arXiv:2306.00978): scales per input channel, then clipping per group.

Notable here: both minimise the squared error of the Linears' outputs on the calibration tokens, in float32; both
contain "do nothing", so a result is never worse than round-to-nearest on its own loss; candidates that are not finite
are passed over.
"""

import torch

from ..modeling.group_codes import grouped
from .rounding import fake_quantize, group_range
from .statistics import squared_error

RATIOS = 20
# Candidates are screened on the outputs that lose most without smoothing; the best few are then compared on all outputs.
# A few outputs (massive activations) carry most of the loss, so that evenly spaced ones mislead.
_SCREEN_ROWS = 128
_FINALISTS = 3
_CLIP_STEPS = 20
_CLIP_LOWEST = 0.5


def candidate_scales(activation, weight):
    """Scales to try, the identity first: a^r / w^(1 - r) for r in 0, 1/20, ..., 19/20 (duo scaling) and a^r.

    Args:
        activation: mean magnitude of each channel.
        weight: mean over outputs of |w| relative to the largest of its group, per channel.

    Returns:
        [candidates, channels], each normalised to a geometric mid-range of one.
    """
    activation, weight = activation.clamp(min=1e-4), weight.clamp(min=1e-4)
    ratios = (torch.arange(RATIOS, dtype=torch.float32) / RATIOS).unsqueeze(1)
    scales = activation**ratios
    scales = torch.cat([scales, scales / weight ** (1 - ratios)])
    scales = scales / (scales.amax(1, keepdim=True) * scales.amin(1, keepdim=True)).sqrt()
    # The first row, a^0, is the identity.
    return scales


def relative_magnitude(weight, group):
    """|w| divided by the largest of its group, averaged over outputs: [..., out, in] -> [..., in]."""
    magnitudes = grouped(weight.abs(), group)
    return (magnitudes / magnitudes.amax(-1, keepdim=True).clamp(min=1e-12)).flatten(-2).mean(-2)


def search_scales(blocks, candidates, expand, group, symmetric=False):
    """The best candidate and its loss beside that of the identity.

    Args:
        blocks: list of (weight [out, in], gram [in, in]) that share the scales.
        candidates: [n, channels], the identity first.
        expand: channels of the source -> columns of the readers.
        group: inputs per quantisation group. symmetric: whether zero stands in the middle of the codes.

    Returns:
        (scales [channels], loss, loss of the identity).
    """
    options = {"group": group, "symmetric": symmetric}
    screens = [_costliest_rows(weight, gram, options) for weight, gram in blocks]
    screened = _losses(screens, candidates, expand, options)
    finalists = [0, *(index for index in screened.argsort().tolist() if index)][: _FINALISTS + 1]
    losses = _losses(blocks, candidates[finalists], expand, options)
    # argmin takes the identity where nothing is strictly better, or nothing finite.
    best = int(losses.argmin())
    return candidates[finalists[best]], float(losses[best]), float(losses[0])


def _costliest_rows(weight, gram, options):
    difference = fake_quantize(weight, **options).sub_(weight)
    losses = ((difference @ gram) * difference).sum(-1)
    rows = losses.topk(min(_SCREEN_ROWS, losses.shape[-1]), dim=-1).indices
    return weight[rows], gram


def _losses(blocks, candidates, expand, options):
    losses = torch.stack([_smoothed_loss(blocks, expand(scales), options) for scales in candidates])
    return losses.nan_to_num(nan=torch.inf)


def _smoothed_loss(blocks, columns, options):
    loss = torch.zeros((), device=columns.device)
    for weight, gram in blocks:
        scaled = weight * columns
        difference = fake_quantize(scaled, **options).sub_(scaled).div_(columns)
        loss = loss + squared_error(difference, gram).sum()
    return loss


def search_clip(weight, gram, group, symmetric=False):
    """Lower and upper ends of every group that minimise the group's own output error.

    Args:
        weight: [out, in]. gram: [in, in].

    Returns:
        (low, high), each [out, in / group].
    """
    low, high = group_range(weight, group)
    blocks = _diagonal_blocks(gram, group)
    best_low, best_high = low.clone(), high.clone()
    best = torch.full_like(low, torch.inf)
    for step in range(int(_CLIP_STEPS * (1 - _CLIP_LOWEST)) + 1):
        ratio = 1 - step / _CLIP_STEPS
        clipped = fake_quantize(weight, group, low * ratio, high * ratio, symmetric=symmetric)
        difference = grouped(clipped - weight, group)
        loss = (torch.einsum("ogi,gij->ogj", difference, blocks) * difference).sum(-1)
        better = loss < best
        best = torch.where(better, loss, best)
        best_low, best_high = torch.where(better, low * ratio, best_low), torch.where(better, high * ratio, best_high)
    return best_low, best_high


def _diagonal_blocks(gram, group):
    count = gram.shape[0] // group
    index = torch.arange(count, device=gram.device)
    return gram.view(count, group, count, group)[index, :, index, :]
