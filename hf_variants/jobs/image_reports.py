"""What `hf-variants image-cost` and `image-attention` do: read a model, count or watch it."""

from pathlib import Path

from ..analysis.joined import sees_images
from ..diagnostics import count_image_cost, image_attention, measure_seconds, prompt_of
from ..modeling.vocabulary import nearest
from ..quantize.checks import refuse_quantized_config
from .attention import image_inputs


def image_costs(source, images, compressions=("own",), text_tokens=32, dtype_bytes=2, measure=False):
    """A list of `ImageCost`, by compression and then by number of images.

    Args:
        source: folder, Hub id or config.json of a vision-language model, or its config; weights are drawn anew.
        images: numbers of images. compressions: values of `token_compression`, and "own".
        measure: also time a forward of each prompt, the compressions in turn, in fp32 on this machine.

    Raises:
        ValueError: for another kind of model, an unknown compression, or one that the config refuses.
    """
    config = read_vision_config(source)
    variants = {_name(config, way): _compressed(config, way) for way in compressions}
    costs = {way: [count_image_cost(each, k, text_tokens, dtype_bytes) for k in images] for way, each in variants.items()}
    if measure:
        import torch

        from ..modeling.modeling_variants_vision import VariantsForImageTextToText

        torch.manual_seed(0)
        models = {way: VariantsForImageTextToText(each).eval() for way, each in variants.items()}
        prompts = {way: [prompt_of(each, k, text_tokens) for k in images] for way, each in variants.items()}
        for way, seconds in measure_seconds(models, prompts).items():
            for cost, value in zip(costs[way], seconds, strict=True):
                cost.seconds = value
    return [cost for row in costs.values() for cost in row]


def attention_to_images(source, text, images):
    """`LayerReading`s of a checkpoint, of the family or of a native type that converts, on a prompt and pictures.

    Raises:
        ValueError: where they do not fit.
    """
    from ..quantize.checkpoint import config_at, load_full_precision

    config = config_at(source)
    if not sees_images(config):
        raise ValueError(f"{source!s} is a {config.model_type!r}, which reads no images; give a vision-language model")
    refuse_quantized_config(config)
    inputs = image_inputs(source, text, images)
    return image_attention(load_full_precision(source).float(), inputs)


def read_vision_config(source):
    """The `VariantsVisionConfig` of a folder, a file or a Hub id. Raises ValueError for another kind."""
    from transformers import AutoConfig

    if not isinstance(source, (str, Path)):
        return source
    try:
        config = AutoConfig.from_pretrained(source)
    except Exception as error:
        # the library's strict classes raise kinds of their own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{source!s} holds no config that can be read: {reason}") from None
    if config.model_type != "variants_vision":
        raise ValueError(f"{source!s} is a {config.model_type!r}; give a vision-language model (variants_vision)")
    return config


def _name(config, way):
    return config.token_compression if way == "own" else way


def _compressed(config, way):
    from ..modeling.configuration_variants_vision import VariantsVisionConfig
    from ..modeling.vision_vocabulary import VISION_CHOICES

    choices = VISION_CHOICES["token_compression"]
    if way == "own" or way == config.token_compression:
        return config
    if way not in choices:
        raise ValueError(f"compression {way!r} is unknown{nearest(way, choices)}; choose from {['own', *choices]}")
    keys = {name: getattr(config, name) for name in config.own_fields()}
    unset = ("compression_factor", "num_resampler_tokens", "num_resampler_layers", "num_resampler_heads")
    keys.update(dict.fromkeys(unset), token_compression=way)
    if way == "resampler":
        # as many tokens as a square of four patches would leave, and heads that divide the width
        patches, width = config.image_grid[0] * config.image_grid[1], config.vision_width
        keys["num_resampler_tokens"] = max(patches // 4, 1)
        keys["num_resampler_heads"] = next(heads for heads in (8, 4, 2, 1) if width % heads == 0)
    return VariantsVisionConfig(**keys)
