"""Makes the family known to transformers' Auto classes, and to what looks models up by name.

Notable here: this needs torch and the Auto classes, so it runs when a program first imports them (`__init__.py`), not before.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoProcessor,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from .modeling import modeling_variants as models
from .modeling.awq_loading import register_awq
from .modeling.int8_loading import register_int8
from .modeling.modeling_image_encoder import VariantsImageEncoder
from .modeling.modeling_variants_seq2seq import VariantsForSeq2SeqLM, VariantsSeq2SeqModel
from .modeling.modeling_variants_vision import VariantsForImageTextToText, VariantsVisionConfig, VariantsVisionModel
from .modeling.processing_variants import VariantsProcessor
from .modeling.variants_base import AFTER_SAVE

AUTO_CLASSES = {
    AutoModel: models.VariantsModel,
    AutoModelForCausalLM: models.VariantsForCausalLM,
    AutoModelForMaskedLM: models.VariantsForMaskedLM,
    AutoModelForSequenceClassification: models.VariantsForSequenceClassification,
    AutoModelForTokenClassification: models.VariantsForTokenClassification,
    AutoModelForQuestionAnswering: models.VariantsForQuestionAnswering,
}
# Members whose config holds whole configs: (Auto class, model class).
COMPOSITES = [
    (AutoModel, VariantsImageEncoder),
    (AutoModel, VariantsVisionModel),
    (AutoModelForImageTextToText, VariantsForImageTextToText),
    (AutoModel, VariantsSeq2SeqModel),
    (AutoModelForSeq2SeqLM, VariantsForSeq2SeqLM),
]


def register():
    """Register every class of the family. Safe to repeat."""
    AutoConfig.register(models.VariantsConfig.model_type, models.VariantsConfig, exist_ok=True)
    for auto_class, model_class in AUTO_CLASSES.items():
        auto_class.register(models.VariantsConfig, model_class, exist_ok=True)
    for auto_class, model_class in COMPOSITES:
        AutoConfig.register(model_class.config_class.model_type, model_class.config_class, exist_ok=True)
        auto_class.register(model_class.config_class, model_class, exist_ok=True)
    AutoProcessor.register(VariantsVisionConfig, VariantsProcessor, exist_ok=True)
    # the pipeline warns of a model class that this table does not name
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES["variants_vision"] = "VariantsForImageTextToText"
    register_awq()
    register_int8()
    if write_card not in AFTER_SAVE:
        AFTER_SAVE.append(write_card)


def write_card(model, directory, repo_id):
    """`hub.write_card`, imported when a model is saved: `import hf_variants` stays light."""
    from .hub import write_card as write

    write(model, directory, repo_id)
