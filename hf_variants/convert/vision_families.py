"""Native vision-language families whose bridges are ours: which of their keys mean what, and what their weights are called.

Notable here: a family says only what stands between tower and language model; the language model goes through the family of
its own type, and the tower is the native one, as it is. `VISION_FAMILIES` is the contents.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

# The towers that a class token stands before.
_WITH_CLASS_TOKEN = ("clip_vision_model", "vit", "dinov2")


@dataclass(frozen=True)
class VisionFamily:
    """One native family.

    Attributes:
        model_type: transformers' name of it.
        meaning: what it is, in a line.
        read: native config -> keys of `VariantsVisionConfig` beside its parts. Raises ValueError for what none means.
        write: `VariantsVisionConfig` -> native keys beside its parts.
        text, tower: prefixes of language model and tower in a native model in memory.
        names: {our name in the bridge: native name}.
        text_keys: native keys of the text config that belong to the family, to what they are where the text stands alone.
        tower_type: our type of the tower, where the native one has a type of its own.
    """

    model_type: str
    meaning: str
    read: Callable
    write: Callable
    text: str
    tower: str
    names: dict
    text_keys: dict = field(default_factory=dict)
    tower_type: str | None = None

    def is_of_a_head(self, name):
        """Whether a native tensor belongs to another head than the language model's: none does."""
        return False


def _refuse(native, key, reason):
    value = native
    for part in key.split("."):
        value = getattr(value, part, None)
    raise ValueError(f"{native.model_type} with {key}={value!r} cannot be converted: {reason}")


def _read_llava(native):
    tower, strategy = native.vision_config.model_type, native.vision_feature_select_strategy
    has_class_token = tower in _WITH_CLASS_TOKEN
    if strategy == "default" and not has_class_token:
        _refuse(
            native,
            "vision_feature_select_strategy",
            f"it drops the first state of {tower!r}, which has no class token there but a patch; 'full' reads all patches",
        )
    return {
        "projector": "mlp",
        "projector_hidden_act": native.projector_hidden_act,
        "projector_bias": native.multimodal_projector_bias,
        "image_delimiters": False,
        "image_token_id": native.image_token_index,
        "vision_feature_layer": native.vision_feature_layer,
        "vision_feature_select_strategy": strategy if has_class_token else "default",
    }


def _write_llava(config):
    layer = config.vision_feature_layer
    whole = not config.tower_has_class_token or config.vision_feature_select_strategy == "full"
    return {
        "projector_hidden_act": config.projector_hidden_act,
        "multimodal_projector_bias": config.projector_bias,
        "image_token_index": config.image_token_id,
        "vision_feature_layer": -1 if isinstance(layer, str) else layer,
        "vision_feature_select_strategy": "full" if whole else "default",
        "image_seq_length": config.tokens_of_image(),
    }


def _read_idefics3(native):
    return {
        "projector": "affine",
        "projector_bias": False,
        "image_delimiters": False,
        "image_token_id": native.image_token_id,
        "token_compression": "pixel_shuffle" if native.scale_factor > 1 else "none",
        "compression_factor": native.scale_factor if native.scale_factor > 1 else None,
    }


def _write_idefics3(config):
    return {"image_token_id": config.image_token_id, "scale_factor": config.compression_factor or 1}


def _read_paligemma(native):
    if native.projection_dim != native.text_config.hidden_size:
        _refuse(native, "projection_dim", f"text_config.hidden_size={native.text_config.hidden_size} is what enters the text")
    if getattr(native.vision_config, "vision_use_head", False):
        _refuse(native, "vision_config.vision_use_head", "no feature of a patch reads the head that pools them")
    if native.text_config.use_bidirectional_attention is not True:
        _refuse(native, "text_config.use_bidirectional_attention", "a prefix that sees itself is what the family does")
    return {
        "projector": "affine",
        "image_delimiters": False,
        "image_attention": "prefix",
        "image_token_id": native.image_token_index,
    }


def _write_paligemma(config):
    width = config.text_config.hidden_size
    return {"image_token_index": config.image_token_id, "projection_dim": width, "hidden_size": width}


_IDEFICS3 = {
    "read": _read_idefics3,
    "write": _write_idefics3,
    "text": "model.text_model.",
    "tower": "model.vision_model.",
    "names": {"projector.linear.weight": "model.connector.modality_projection.proj.weight"},
    "tower_type": "siglip_vision_model",
}
_LLAVA_NAMES = {
    f"projector.{layer}.{kind}": f"model.multi_modal_projector.{layer}.{kind}"
    for layer in ("linear_1", "linear_2")
    for kind in ("weight", "bias")
}

VISION_FAMILIES = {
    family.model_type: family
    for family in (
        VisionFamily(
            "llava",
            "Patches of any tower through a two-layer network among the tokens of any causal model.",
            _read_llava,
            _write_llava,
            "model.language_model.",
            "model.vision_tower.",
            _LLAVA_NAMES,
        ),
        VisionFamily("idefics3", "Patches shuffled into channels and projected, causal among Llama's tokens.", **_IDEFICS3),
        VisionFamily("smolvlm", "Idefics3 with another processor.", **_IDEFICS3),
        VisionFamily(
            "paligemma",
            "Patches of SigLIP projected among Gemma's or Gemma 2's tokens; the prompt sees itself.",
            _read_paligemma,
            _write_paligemma,
            "model.language_model.",
            "model.vision_tower.",
            {f"projector.linear.{kind}": f"model.multi_modal_projector.linear.{kind}" for kind in ("weight", "bias")},
            text_keys={"use_bidirectional_attention": None, "num_image_tokens": None},
        ),
    )
}

# Types of transformers that no bridge of ours means exactly, with the reason.
VISION_LEFT_OUT = {
    "mllama": "layers that attend to images in place of tokens, and a tower of tiles with gates of its own",
    "llava_next": "images cut into tiles with a learned vector at the end of each row",
    "idefics2": "a resampler whose keys are normed and grouped unlike ours",
    "idefics": "gated cross-attention with a mask per image and norms of its own",
    "qwen2_vl": "positions in three directions (time, row, column)",
    "qwen2_5_vl": "positions in three directions (time, row, column)",
    "gemma3": "a norm before the projection of pooled patches",
    "blip-2": "a querying transformer between tower and text",
    "pixtral": "a tower with positions in two directions",
}
