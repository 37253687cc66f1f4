"""What the card says of a model whose config holds whole configs: encoder-decoders, image encoders, vision-language models.

Notable here: a part of the family shows its toggles as a card of its own would; of a native part, the keys of its shape.
"""

from pathlib import Path

import jinja2
import transformers

from .quantization_facts import quantization_of, quantized_section

TEMPLATE = Path(__file__).with_name("composite.jinja")
# Auto class -> pipeline tag
PIPELINES = {
    "AutoModel": "feature-extraction",
    "AutoModelForSeq2SeqLM": "text2text-generation",
    "AutoModelForImageTextToText": "image-text-to-text",
}
# The Auto class is the same, the pipeline is not.
PIPELINE_OF_CLASS = {"VariantsImageEncoder": "image-feature-extraction"}
_SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size")


def is_composite(config):
    """Whether a config of the family is made of others."""
    return bool(config.sub_configs)


def composite_facts(model, repo_id, base_model, toggles_of, shape, directory=None):
    """As `card_facts`, for a composite.

    Args:
        toggles_of: config of the family -> {key: value} that differ from the defaults.
        shape: keys of the family's shape.
        directory: where the model was saved, or None.
    """
    config = model.config
    auto_class = auto_class_of(model)
    parts = {name: _part(getattr(config, name), toggles_of, shape) for name in config.sub_configs}
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    section = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        class_name=type(model).__name__,
        auto_class=auto_class,
        own={name: getattr(config, name) for name in config.own_fields() if name not in config.sub_configs},
        parts=parts,
        whole_parts=" and ".join(f"`{name}`" for name in parts if hasattr(getattr(config, name), "layer_plan")),
        parameters=_numbers(model),
        quantization=quantization_of(config),
        quantized_section=quantized_section(config, directory),
        dtype=str(model.dtype).removeprefix("torch."),
        base_model=base_model if base_model != repo_id else None,
        repo=repo_id or "path/or/repo-id",
        transformers_version=transformers.__version__,
    )
    title = (repo_id or base_model or type(model).__name__).split("/")[-1]
    tag = PIPELINE_OF_CLASS.get(type(model).__name__, PIPELINES.get(auto_class))
    return {"title": title, "section": section.strip(), "pipeline_tag": tag, "base_model": base_model}


def _numbers(model):
    """Parameters, those that codes of any format stand for included."""
    from ..modeling.packed_linear import PackedLinear

    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    # transformers' own count knows how many numbers a matrix of bitsandbytes holds
    return model.num_parameters() + sum(module.in_features * module.out_features for module in packed)


def auto_class_of(model):
    """The Auto class that loads a model; that of the class it extends for a subclass. Raises ValueError where none does."""
    names = {entry.split(".")[-1]: auto for auto, entry in model.config.auto_map.items()}
    for cls in type(model).__mro__:
        if cls.__name__ in names:
            return names[cls.__name__]
    raise ValueError(f"{type(model).__name__} is loaded by no Auto class that its config names: {sorted(names)}")


def _part(config, toggles_of, shape):
    if hasattr(config, "layer_plan"):
        return {
            "model_type": config.model_type,
            "shape": {name: getattr(config, name) for name in shape},
            "toggles": toggles_of(config),
        }
    found = {name: getattr(config, name) for name in _SHAPE if getattr(config, name, None) is not None}
    return {"model_type": config.model_type, "shape": found, "toggles": {}}
