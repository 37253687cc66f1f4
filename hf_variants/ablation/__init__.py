"""Ablations: single changes of a base config, at an equal budget, over several seeds, with what lies within noise.

    ablate(AblateSpec)      variants_of(spec)      matched(config, base, ...)      compare(values, reference)

Notable here: a run is an ordinary pretraining run in a directory of its own, so that whatever was interrupted goes on. Names
are resolved on first use, so that reading a recipe does not import torch.
"""

from ..lazy_names import lazy_names

_WHERE = {
    "AblateSpec": "specs",
    "ablate": "run",
    "variants_of": "variants",
    "match_key": "matching",
    "costs": "matching",
    "compare": "statistics",
    "interval": "statistics",
}

__all__, __getattr__ = lazy_names(__name__, _WHERE)
