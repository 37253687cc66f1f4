"""Studies: questions that take many trained models to answer, each one command that can be killed and goes on.

    scaling_study(ScalingStudySpec)      how loss falls with parameters and tokens, as runs, a law and a figure
    extrapolate(ExtrapolateSpec)         what each way of telling positions does beyond the length it was trained on

Notable here: every model is an ordinary pretraining run in a directory of its own. Names are resolved on first use, so that
reading a recipe does not import torch.
"""

from ..lazy_names import lazy_names

_WHERE = {
    "ScalingStudySpec": "scaling_specs",
    "scaling_study": "scaling_run",
    "ExtrapolateSpec": "extrapolation_specs",
    "extrapolate": "extrapolation",
}

__all__, __getattr__ = lazy_names(__name__, _WHERE)
