"""Vision towers: any supported image encoder behind one call, pixels [N, C, H, W] to patch features [N, patches, width].

Notable here: whether a class token stands before the patches is a fact of each tower, written down once, and exactly that
many states are dropped: SigLIP has none, so nothing is. Towers are built by class, so that they load where the family is
remote code. `TOWERS` is the contents.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from .configuration_image_encoder import VariantsImageEncoderConfig
from .modeling_image_encoder import VariantsImageEncoder, check_pixels
from .vocabulary import nearest

LAST = "last_hidden_state"


@dataclass(frozen=True)
class Tower:
    """What is known of one kind of image encoder.

    Attributes:
        config_class: () -> its config class; imported when it is asked for.
        build: config -> model.
        class_tokens: config -> how many states stand before those of the patches.
        any_size: whether images may be of another size than the config's (positions are interpolated).
        last: what `last_hidden_state` is, for the documentation.
    """

    config_class: Callable
    build: Callable
    class_tokens: Callable
    any_size: bool
    last: str


def _native_config(name):
    def load():
        import transformers

        return getattr(transformers, name)

    return load


def _build_clip(config):
    from transformers import CLIPVisionModel

    return CLIPVisionModel(config)


def _build_siglip(config):
    from transformers import SiglipVisionModel

    model = SiglipVisionModel(config)
    if model.use_head:
        # it pools all patches into one vector, which no feature of a patch reads
        model.use_head = False
        del model.head
    return model


def _build_vit(config):
    from transformers import ViTModel

    return ViTModel(config, add_pooling_layer=False)


def _build_dinov2(config):
    from transformers import Dinov2Model

    return Dinov2Model(config)


def _build_internvl(config):
    from transformers import InternVLVisionModel

    return InternVLVisionModel(config)


def _build_qianfan_ocr(config):
    from transformers import QianfanOCRVisionModel

    return QianfanOCRVisionModel(config)


# model_type of a vision config -> the tower
TOWERS = {
    "clip_vision_model": Tower(
        _native_config("CLIPVisionConfig"), _build_clip, lambda config: 1, False, "the last layer's output, without a norm"
    ),
    "siglip_vision_model": Tower(
        _native_config("SiglipVisionConfig"), _build_siglip, lambda config: 0, False, "behind post_layernorm"
    ),
    "vit": Tower(_native_config("ViTConfig"), _build_vit, lambda config: 1, False, "behind layernorm"),
    "dinov2": Tower(_native_config("Dinov2Config"), _build_dinov2, lambda config: 1, True, "behind layernorm"),
    "internvl_vision": Tower(
        _native_config("InternVLVisionConfig"),
        _build_internvl,
        lambda config: 1,
        True,
        "the last layer's output; behind layernorm where use_mean_pooling is off",
    ),
    "qianfan_ocr_vision": Tower(
        _native_config("QianfanOCRVisionConfig"),
        _build_qianfan_ocr,
        lambda config: 1,
        True,
        "the last layer's output; behind layernorm where use_mean_pooling is off",
    ),
    "variants_image_encoder": Tower(
        lambda: VariantsImageEncoderConfig,
        VariantsImageEncoder,
        lambda config: int(config.class_token),
        False,
        "behind the final norm, where encoder.final_norm is set",
    ),
}


def tower_of(model_type):
    """The `Tower` of a model type. Raises ValueError naming the supported ones."""
    if model_type not in TOWERS:
        raise ValueError(
            f"vision_config.model_type={model_type!r} is not a supported vision tower{nearest(model_type, TOWERS)}; choose "
            f"from {list(TOWERS)}"
        )
    return TOWERS[model_type]


def tower_config(vision_config):
    """The config of a tower from a dict with `model_type`, or from a config, which is returned as it is.

    Raises:
        ValueError: for a dict without `model_type`, an unsupported tower, or what the tower's own config refuses.
    """
    if not isinstance(vision_config, dict):
        tower_of(getattr(vision_config, "model_type", None))
        return vision_config
    if "model_type" not in vision_config:
        raise ValueError(f"vision_config={vision_config!r} names no model_type; choose from {list(TOWERS)}")
    given = {key: value for key, value in vision_config.items() if key != "model_type"}
    return tower_of(vision_config["model_type"]).config_class()(**given)


def build_tower(vision_config, feature_layer=LAST, keep_class_token=False):
    """The tower of `vision_config`, with random weights.

    Args:
        vision_config: a config of a supported tower (`TOWERS`).
        feature_layer: which states are the features. An int indexes the states as `output_hidden_states` does: 0 enters the
            first layer, -1 leaves the last layer and is before any final norm, -2 leaves the last but one (LLaVA). A list of
            ints gives them side by side, in that order (width times their number). "last_hidden_state" is what the tower
            ends with, behind its final norm where it has one (PaliGemma, Idefics3).
        keep_class_token: give the states before those of the patches too, first.

    Returns:
        A `VisionTower`.

    Raises:
        ValueError: for an unsupported tower, or a layer that it does not have.
    """
    tower = tower_of(getattr(vision_config, "model_type", None))
    return VisionTower(tower, vision_config, feature_layer, keep_class_token)


class VisionTower(nn.Module):
    """Pixels [N, C, H, W] -> features [N, patches, width], patches row by row, without class tokens unless they are kept.

    Attributes:
        vision_model: the model itself.
        width: size of a feature.
    """

    def __init__(self, tower, config, feature_layer, keep_class_token=False):
        super().__init__()
        check_feature_layer(feature_layer, config.num_hidden_layers)
        self.vision_model = tower.build(config)
        self.num_channels = config.num_channels
        self.image_sides, self.patch_sides = _two(config.image_size), _two(config.patch_size)
        self.any_size = tower.any_size
        self.class_tokens = 0 if keep_class_token else tower.class_tokens(config)
        self.layers = feature_layer if isinstance(feature_layer, (str, int)) else list(feature_layer)
        self.width = config.hidden_size * (len(self.layers) if isinstance(self.layers, list) else 1)
        self._states = self._last_state if self.layers == LAST else self._hidden_states

    def forward(self, pixel_values):
        """Args: pixel_values [N, channels, height, width]. Raises ValueError for another size or number of channels."""
        check_pixels(pixel_values, self.num_channels, None)
        self.grid(*pixel_values.shape[2:])
        return self._states(pixel_values)[:, self.class_tokens :]

    def _last_state(self, pixel_values):
        # said outright, so that a model around it that records its own states gets none of these among them
        return self.vision_model(pixel_values, output_hidden_states=False).last_hidden_state

    def _hidden_states(self, pixel_values):
        states = self.vision_model(pixel_values, output_hidden_states=True).hidden_states
        if isinstance(self.layers, int):
            return states[self.layers]
        return torch.cat([states[layer] for layer in self.layers], dim=-1)

    def grid(self, height, width):
        """(rows, columns) of patches of an image of that many pixels. Raises ValueError for a size that the tower refuses."""
        if [height, width] != self.image_sides:
            if not self.any_size:
                raise ValueError(
                    f"an image of {height} x {width} pixels does not fit this tower, whose image_size is "
                    f"{self.image_sides[0]} x {self.image_sides[1]} (height x width): resize it, as the image processor does"
                )
            if height % self.patch_sides[0] or width % self.patch_sides[1]:
                raise ValueError(
                    f"an image of {height} x {width} pixels is not a whole number of patches of {self.patch_sides[0]} x "
                    f"{self.patch_sides[1]} pixels, so its edge would be ignored; resize it to multiples"
                )
        return height // self.patch_sides[0], width // self.patch_sides[1]

    def num_patches(self, height, width):
        """Features per image of that many pixels."""
        rows, columns = self.grid(height, width)
        return rows * columns


def check_feature_layer(feature_layer, num_layers):
    """Raise a ValueError for states that a tower of `num_layers` layers does not have."""
    if feature_layer == LAST:
        return
    layers = feature_layer if isinstance(feature_layer, (list, tuple)) else [feature_layer]
    whole = all(isinstance(layer, int) and not isinstance(layer, bool) for layer in layers)
    if not layers or not whole or not all(-num_layers - 1 <= layer <= num_layers for layer in layers):
        raise ValueError(
            f"vision_feature_layer={feature_layer!r} must be {LAST!r}, a whole number from {-num_layers - 1} to {num_layers} "
            f"(the tower has {num_layers} layers; -1 leaves the last, 0 enters the first), or a list of such numbers"
        )


def _two(value):
    return list(value) if isinstance(value, (list, tuple)) else [value, value]
