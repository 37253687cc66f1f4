"""hf_variants: every published choice of a Transformer as a config toggle of one Hugging Face model family.

Importing the package registers the family with transformers' Auto classes. Notable here: nothing heavy is imported for that.
Names are resolved on first use, and the registration happens when a program imports the Auto classes or a model of the family,
so that a command's help answers at once.
"""

from importlib import import_module

from .peft_support import register_peft
from .trl_support import register_trl
from .when_imported import when_imported, when_settled

__version__ = "0.1.0"

_ROOMS = (
    "ablation",
    "analysis",
    "context",
    "convert",
    "diagnostics",
    "evaluation",
    "finetune",
    "hub",
    "jobs",
    "metrics",
    "presets",
    "quantize",
    "report",
    "scaling",
    "seq2seq",
    "studies",
    "surgery",
    "tokens",
    "training",
    "vision_language",
)

# name -> module of the room that travels
_ELSEWHERE = {
    "VariantsImageEncoder": "modeling_image_encoder",
    "VariantsImageEncoderConfig": "configuration_image_encoder",
    "VariantsForImageTextToText": "modeling_variants_vision",
    "VariantsProcessor": "processing_variants",
    "VariantsVisionConfig": "configuration_variants_vision",
    "VariantsVisionModel": "modeling_variants_vision",
    "VariantsForSeq2SeqLM": "modeling_variants_seq2seq",
    "VariantsSeq2SeqConfig": "configuration_variants_seq2seq",
    "VariantsSeq2SeqModel": "modeling_variants_seq2seq",
}

__all__ = [
    "StartWindowCache",
    "VariantsConfig",
    "VariantsForCausalLM",
    "VariantsForImageTextToText",
    "VariantsForMaskedLM",
    "VariantsForQuestionAnswering",
    "VariantsForSeq2SeqLM",
    "VariantsForSequenceClassification",
    "VariantsForTokenClassification",
    "VariantsImageEncoder",
    "VariantsImageEncoderConfig",
    "VariantsModel",
    "VariantsPreTrainedModel",
    "VariantsProcessor",
    "VariantsSeq2SeqConfig",
    "VariantsSeq2SeqModel",
    "VariantsVisionConfig",
    "VariantsVisionModel",
]


def register():
    """Make the family known to the Auto classes, now. Importing the package does it as soon as they are imported."""
    from .registration import register as register_now

    register_now()


def _log_expert_numbers(trainer_module):
    # imported here: TrainerCallback brings in peft and with it a second of import time
    from .callbacks import add_default_callback

    add_default_callback(trainer_module)


def _register_pipeline(pipelines):
    from .seq2seq.pipeline import register

    register()


def _give_presets(family_config):
    from .presets import preset_keys

    family_config.PRESET_READERS[:] = [preset_keys]


when_settled(
    (
        "transformers.models.auto.configuration_auto",
        f"{__name__}.modeling.modeling_variants",
        f"{__name__}.modeling.modeling_variants_seq2seq",
    ),
    ("transformers", __name__),
    register,
)
when_imported(f"{__name__}.modeling.family_config", _give_presets)
when_imported("transformers.trainer", _log_expert_numbers)
when_imported("transformers.pipelines", _register_pipeline)
register_peft()
register_trl()


def __getattr__(name):
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name == "StartWindowCache":
        return import_module(f"{__name__}.modeling.start_window_cache").StartWindowCache
    if name in __all__:
        module = _ELSEWHERE.get(name, "modeling_variants")
        return getattr(import_module(f"{__name__}.modeling.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_ROOMS, *__all__})
