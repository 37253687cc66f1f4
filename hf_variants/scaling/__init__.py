"""Scaling laws: fitted from runs, published ones, and what a budget buys under them."""

from .budget import Budget, effective_tokens, hyperparameter_guides
from .fit import FittedLaw, fit_law
from .isoflop import fit_isoflop
from .laws import PUBLISHED, ScalingLaw, published_law
from .plan import TrainingPlan, plan_training
from .practice import overtraining_table
from .runs import Run, read_runs

__all__ = [
    "PUBLISHED",
    "Budget",
    "FittedLaw",
    "Run",
    "ScalingLaw",
    "TrainingPlan",
    "effective_tokens",
    "fit_isoflop",
    "fit_law",
    "hyperparameter_guides",
    "overtraining_table",
    "plan_training",
    "published_law",
    "read_runs",
]
