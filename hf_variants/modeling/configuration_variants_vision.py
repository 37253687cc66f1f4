"""The config of a vision-language model: a language model of the family, an image tower, and the bridge between them.

Notable here: `text_config` is a whole `VariantsConfig`, so every toggle of the family works under images; what an image costs
in tokens is a function of the config (`tokens_of_image`).
"""

from typing import ClassVar

from transformers import AutoConfig

from .composite_config import CompositeConfig
from .config_checks import check_activation, check_types
from .configuration_variants import VariantsConfig
from .image_readers import WIDTHS
from .token_compression import SQUARES, tokens_of_grid
from .vision_rules import VISION_RULES
from .vision_tower import LAST, TOWERS, check_feature_layer, tower_config, tower_of
from .vision_vocabulary import VISION_CHOICES
from .vocabulary import nearest

_AUTO_MAP = {
    "AutoConfig": "configuration_variants_vision.VariantsVisionConfig",
    "AutoModel": "modeling_variants_vision.VariantsVisionModel",
    "AutoModelForImageTextToText": "modeling_variants_vision.VariantsForImageTextToText",
    "AutoProcessor": "processing_variants.VariantsProcessor",
}


class VariantsVisionConfig(CompositeConfig):
    r"""Config of `VariantsVisionModel` and `VariantsForImageTextToText`.

    The choices of the string fields stand in `vision_vocabulary.VISION_CHOICES` with their sources.

    Args:
        text_config: the language model, a causal `VariantsConfig` or a dict of its keys.
        vision_config: the image tower: a config, or a dict with its `model_type`, of those that `vision_tower` supports.
        bridge: how the language model reads images.
        projector: what makes image features as wide as text, with `projector_hidden_act` between two layers and
            `projector_bias`, and `projector_intermediate_size` numbers between them (None: as wide as the text).
        projector_norm: the norm of the features before the projector, with `projector_norm_eps` (None: 1e-5).
        image_delimiters: a learned vector before and one behind the features of each image, [IMG] and [/IMG]; an image of N
            features then takes N + 2 tokens. None gives True for the projection bridge.
        token_compression: how patches become fewer tokens. compression_factor: side of the squares of `pool` and
            `pixel_shuffle`, None gives 2; num_resampler_tokens, num_resampler_layers, num_resampler_heads: None gives 64, 2
            and 8.
        image_token_id: the id that stands in the text where an image is: once per token of the image under
            `bridge="projection"` (its embedding is never read), once per image under `gated_cross_attention` (its embedding
            is that of the vocabulary).
        image_attention: what image tokens see of each other.
        vision_feature_layer: which states of the tower are read, as `vision_tower.build_tower` says: "last_hidden_state", or
            an index of the hidden states (-2 leaves the last layer but one), or a list whose states are joined on their
            channels.
        vision_feature_select_strategy: whether a class token is kept.
        cross_attention_layers: the text layers that a gated cross-attention stands before; None gives every layer.
        cross_attention_scope: which images a text token sees.
        cross_attention_mlp: a gated feed-forward behind each gated cross-attention (Flamingo, arXiv:2204.14198 §2.2).

    Raises:
        ValueError: naming field, value, reason and choices, for an unknown key, a wrong type, an unknown choice, an
            unsupported tower, or what `vision_rules.VISION_RULES` refuses.
    """

    model_type = "variants_vision"
    keys_to_ignore_at_inference: ClassVar[list] = VariantsConfig.keys_to_ignore_at_inference
    sub_configs: ClassVar[dict] = {"text_config": VariantsConfig, "vision_config": AutoConfig}

    text_config: dict | VariantsConfig | None = None
    vision_config: dict | object | None = None
    bridge: str = "projection"
    projector: str = "mlp"
    projector_hidden_act: str = "gelu"
    projector_bias: bool = True
    projector_intermediate_size: int | None = None
    projector_norm: str = "none"
    projector_norm_eps: float | None = None
    image_delimiters: bool | None = None
    token_compression: str = "none"
    compression_factor: int | None = None
    num_resampler_tokens: int | None = None
    num_resampler_layers: int | None = None
    num_resampler_heads: int | None = None
    image_token_id: int | None = None
    image_attention: str = "causal"
    vision_feature_layer: int | list | str = LAST
    vision_feature_select_strategy: str = "default"
    cross_attention_layers: list | None = None
    cross_attention_scope: str = "last"
    cross_attention_mlp: bool = False
    # what a native family stores that no toggle of this family means; written back by `convert.to_native`
    native: dict | None = None

    def __post_init__(self, **kwargs):
        self.refuse_unknown(kwargs)
        self._resolve_parts()
        self._check_own()
        self._resolve_bridge()
        super().__post_init__(**kwargs)
        self.auto_map = {**_AUTO_MAP, **(getattr(self, "auto_map", None) or {})}
        self.check()

    def check(self):
        """Refuse what the family cannot mean. Raises ValueError; called when the config and when a model is made."""
        self._check_own()
        super().check()
        for rule in VISION_RULES:
            if rule.broken(self):
                raise ValueError(rule.text.format(c=self))

    def _check_own(self):
        own = VariantsVisionConfig.__annotations__.items()
        check_types(self, {name: kind for name, kind in own if name not in self.sub_configs})
        check_feature_layer(self.vision_feature_layer, self.vision_config.num_hidden_layers)
        for name, choices in VISION_CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"{name}={value!r} is unknown{nearest(value, choices)}; choose from {list(choices)}")
        check_activation("projector_hidden_act", self.projector_hidden_act)

    def _resolve_parts(self):
        text = {} if self.text_config is None else self.text_config
        if isinstance(text, dict):
            self._refuse_other_type(text.get("model_type", VariantsConfig.model_type))
            text = VariantsConfig(**text)
        elif not hasattr(text, "layer_plan"):
            self._refuse_other_type(getattr(text, "model_type", text))
        self.text_config = text
        if self.vision_config is None:
            raise ValueError(f"vision_config is missing: give a config, or a dict with a model_type from {list(TOWERS)}")
        self.vision_config = tower_config(self.vision_config)

    def _refuse_other_type(self, model_type):
        if model_type != VariantsConfig.model_type:
            raise ValueError(
                f"text_config is of type {model_type!r}; give a VariantsConfig (hf_variants.convert.from_native brings other "
                "language models into the family)"
            )

    def _resolve_bridge(self):
        if self.image_delimiters is None:
            self.image_delimiters = self.bridge == "projection"
        if self.projector != "affine" and self.projector_intermediate_size is None:
            self.projector_intermediate_size = WIDTHS[self.bridge](self.text_config)
        if self.projector_norm != "none" and self.projector_norm_eps is None:
            self.projector_norm_eps = 1e-5
        if self.token_compression in SQUARES and self.compression_factor is None:
            self.compression_factor = 2
        if self.token_compression == "resampler":
            defaults = {"num_resampler_tokens": 64, "num_resampler_layers": 2, "num_resampler_heads": 8}
            for name, value in defaults.items():
                setattr(self, name, value if getattr(self, name) is None else getattr(self, name))
        if self.bridge == "gated_cross_attention" and self.cross_attention_layers is None:
            self.cross_attention_layers = list(range(self.text_config.num_hidden_layers))
        if self.image_token_id is None:
            raise ValueError(
                "image_token_id is missing: give the id that stands for images in the text, such as that of the tokenizer's "
                "'<image>' token"
            )

    # ---- what is derived ----
    @property
    def tie_word_embeddings(self):
        return self.text_config.tie_word_embeddings

    @tie_word_embeddings.setter
    def tie_word_embeddings(self, value):
        self.text_config.tie_word_embeddings = value

    @property
    def initializer_range(self):
        return self.text_config.initializer_range

    @property
    def has_experts(self):
        return self.text_config.has_experts

    @property
    def vision_width(self):
        """Width of the features that the tower gives: that of its states, once per layer that is read."""
        layers = self.vision_feature_layer
        return self.vision_config.hidden_size * (len(layers) if isinstance(layers, list) else 1)

    @property
    def tower_has_class_token(self):
        return tower_of(self.vision_config.model_type).class_tokens(self.vision_config) > 0

    @property
    def image_grid(self):
        """(rows, columns) of the patches of an image of the tower's own size."""
        return self.grid_of(*two_sides(self.vision_config.image_size))

    @property
    def text_follows_original_length(self):
        """Whether the language model recomputes its cache where a row grows beyond its original length."""
        text = self.text_config
        return any(text.rope_of(key)["rope_type"] == "longrope" for key in text.rope_keys)

    def grid_of(self, height, width):
        """(rows, columns) of the patches of an image of `height` x `width` pixels; what fills no patch is left out."""
        rows, columns = two_sides(self.vision_config.patch_size)
        return height // rows, width // columns

    def features_of_image(self, height, width):
        """Number of features of an image of `height` x `width` pixels, behind compression."""
        kept = self.vision_feature_select_strategy == "full"
        how = (self.token_compression, self.compression_factor, self.num_resampler_tokens)
        return tokens_of_grid(*how, *self.grid_of(height, width), kept)

    def tokens_of_image(self, height=None, width=None):
        """Number of `image_token_id` that stand for an image: N features and its delimiters, N + 2; or 1 where text reads
        images by cross-attention. Without a size, for an image of the tower's own.
        """
        if self.bridge == "gated_cross_attention":
            return 1
        if height is None:
            height, width = two_sides(self.vision_config.image_size)
        return self.features_of_image(height, width) + 2 * int(self.image_delimiters)


def two_sides(value):
    """(height, width) of a size that is given as one number or as two."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value, value)


__all__ = ["VariantsVisionConfig"]
