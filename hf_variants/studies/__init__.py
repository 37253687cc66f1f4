"""Studies: questions that take many trained models to answer, each one command that can be killed and goes on.

    scaling_study(ScalingStudySpec)      how loss falls with parameters and tokens, as runs, a law and a figure
    extrapolate(ExtrapolateSpec)         what each way of telling positions does beyond the length it was trained on

Notable here: every model is an ordinary pretraining run in a directory of its own. Names are resolved on first use, so that
reading a recipe does not import torch.
"""

_WHERE = {
    "ScalingStudySpec": "scaling_specs",
    "scaling_study": "scaling_run",
    "ExtrapolateSpec": "extrapolation_specs",
    "extrapolate": "extrapolation",
}

__all__ = list(_WHERE)


def __getattr__(name):
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
