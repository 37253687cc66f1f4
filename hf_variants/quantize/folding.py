"""Moving a scale from a source into its readers without changing the function of the model.

Notable here: the source is divided by s and ROUNDED as it will be stored, and the readers are multiplied by the ratio
that the rounding left, so that low-precision gains cost nothing; a gain is the EFFECTIVE one (1 + w for unit-offset
norms).
"""

import torch


@torch.no_grad()
def apply_smoothing(model, site, scales, dtype=torch.float32):
    """Fold `scales` (one per channel of the source, positive) into `site` of `model`, in place.

    Args:
        dtype: storage dtype of the source norm's weight.

    Returns:
        The scales that were really applied, float32, one per channel of the source.
    """
    source = model.get_submodule(site.source)
    applied = (_divide_norm if site.kind == "norm" else _divide_rows)(source, scales.float(), dtype)
    columns = site.expand(applied)
    for name in (*(name for group in site.readers for name in group), *site.followers):
        weight = model.get_submodule(name).weight
        weight.copy_(weight.float() * columns)
    return applied


def _divide_norm(norm, scales, dtype):
    offset = 1.0 if getattr(norm, "unit_offset", False) else 0.0
    gain = norm.weight.float() + offset
    stored = (gain / scales - offset).to(dtype).float()
    applied = gain / (stored + offset)
    # A channel that the norm silences (or that rounding would silence) keeps its gain.
    usable = torch.isfinite(applied) & (applied > 0)
    applied = torch.where(usable, applied, 1.0)
    norm.weight.copy_(torch.where(usable, stored, norm.weight.float()))
    if getattr(norm, "bias", None) is not None:
        norm.bias.copy_(norm.bias.float() / applied)
    return applied


def _divide_rows(linear, scales, dtype):
    linear.weight.copy_(linear.weight.float() / scales.unsqueeze(1))
    if linear.bias is not None:
        linear.bias.copy_(linear.bias.float() / scales)
    return scales
