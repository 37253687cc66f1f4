"""hf_variants: every published choice of a Transformer as a config toggle of one Hugging Face model family.

Importing the package registers the family with transformers' Auto classes; the tools around it are imported when used.
"""

from importlib import import_module

from .modeling.modeling_variants import (
    VariantsConfig,
    VariantsForCausalLM,
    VariantsForMaskedLM,
    VariantsForQuestionAnswering,
    VariantsForSequenceClassification,
    VariantsForTokenClassification,
    VariantsModel,
    VariantsPreTrainedModel,
)
from .registration import register

__version__ = "0.1.0"

_ROOMS = ("analysis", "context", "convert", "evaluation", "hub", "presets", "quantize", "report", "training")

register()


def __getattr__(name):
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "VariantsConfig",
    "VariantsForCausalLM",
    "VariantsForMaskedLM",
    "VariantsForQuestionAnswering",
    "VariantsForSequenceClassification",
    "VariantsForTokenClassification",
    "VariantsModel",
    "VariantsPreTrainedModel",
]
