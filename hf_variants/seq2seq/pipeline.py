"""`pipeline("text-to-text", model=...)`: what an encoder-decoder writes for texts.

Notable here: transformers 5 has no pipeline for encoder-decoders any more ("text2text-generation", "summarization" and
"translation" are removed), so this one is registered beside its own; native encoder-decoders work in it, too.
"""

from transformers import AutoModelForSeq2SeqLM, GenerationConfig
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import Pipeline

TASK = "text-to-text"


class TextToTextPipeline(Pipeline):
    """Call it with a text or a list of texts: [{"generated_text": ...}] for each.

    Args of a call: prefix (str) goes before every text; all others are `GenerationConfig` keys; batch_size as in any pipeline.
    """

    _pipeline_calls_generate = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True
    # as many new tokens as transformers' own pipelines, where nothing else is said
    _default_generation_config = GenerationConfig(max_new_tokens=256)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if not getattr(self.model.config, "is_encoder_decoder", False):
            raise ValueError(
                f"the task {TASK!r} is for encoder-decoders, and this model is of the type {self.model.config.model_type!r}; "
                "use 'text-generation' for a decoder"
            )

    def _sanitize_parameters(self, prefix=None, **generation):
        return {} if prefix is None else {"prefix": prefix}, generation, {}

    def preprocess(self, text, prefix=""):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"the text {text!r} is empty or no text, so the encoder would have nothing to read")
        inputs = self.tokenizer(prefix + text, return_tensors="pt")
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}

    def _forward(self, inputs, **generation):
        # lays what a call says over what the pipeline was made with, the model's own config and the default above
        if hasattr(self, "_prepare_generate_kwargs"):
            generation = self._prepare_generate_kwargs(generation)
        else:  # transformers before 5.23
            generation.setdefault("generation_config", self.generation_config)
        return {"ids": self.model.generate(**inputs, **generation)}

    def postprocess(self, output):
        return [{"generated_text": self.tokenizer.decode(ids, skip_special_tokens=True)} for ids in output["ids"]]


def register():
    """Make the task known to `transformers.pipeline`. Safe to repeat."""
    if TASK not in PIPELINE_REGISTRY.supported_tasks:
        PIPELINE_REGISTRY.register_pipeline(TASK, TextToTextPipeline, AutoModelForSeq2SeqLM, type="text")
