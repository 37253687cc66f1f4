"""The config of an image encoder: a whole `VariantsConfig` for its stack, and how an image becomes patches.

Notable here: with `encoder=None` it is a ViT; every toggle of the family that does not belong to text works in `encoder`.
"""

from typing import ClassVar

from .composite_config import CompositeConfig
from .config_checks import check_types
from .configuration_variants import VariantsConfig
from .image_rules import IMAGE_CHOICES, image_rules
from .vocabulary import LEARNED, nearest

# What makes the stack that of a ViT (Dosovitskiy et al. 2020, arXiv:2010.11929).
VIT = {
    **{"norm_type": "layernorm", "mlp_type": "plain", "hidden_act": "gelu", "mlp_bias": True, "attention_bias": True},
    **{"position_embedding_type": "learned"},
}


class VariantsImageEncoderConfig(CompositeConfig):
    r"""Config of `VariantsImageEncoder`.

    Args:
        encoder: the stack, a `VariantsConfig` or a dict of its keys; as a dict, `is_causal` False, a `vocab_size` of 1 and the
            rows of a learned table need not be given. None gives ViT's choices at the default size.
        image_size, patch_size: sides in pixels, one number or [height, width].
        num_channels: 1 for grey and 3 for RGB images.
        class_token: whether a learned vector stands before the patches. Features of a tower never contain it.
        patch_bias: whether the projection of patches has a bias (ViT and SigLIP have one, CLIP has none).
        patch_positions: a key of `image_rules.IMAGE_CHOICES["patch_positions"]`.

    Raises:
        ValueError: naming field, value, reason and choices, as `VariantsConfig`.
    """

    model_type = "variants_image_encoder"
    sub_configs: ClassVar[dict] = {"encoder": VariantsConfig}

    encoder: dict | VariantsConfig | None = None
    image_size: int | list = 224
    patch_size: int | list = 16
    num_channels: int = 3
    class_token: bool = True
    patch_bias: bool = True
    patch_positions: str = "encoder"

    def __post_init__(self, **kwargs):
        self.refuse_unknown(kwargs)
        check_own_types(self)
        self.encoder = self._resolve_encoder(VIT if self.encoder is None else self.encoder)
        # states of a tower are counted before the final norm, as natively; `last_hidden_state` is behind it
        self.encoder.tie_last_hidden_states = False
        super().__post_init__(**kwargs)
        self.auto_map = {**_AUTO_MAP, **(getattr(self, "auto_map", None) or {})}
        self.check()

    def _resolve_encoder(self, encoder):
        if not isinstance(encoder, dict):
            return encoder
        given = {"is_causal": False, "vocab_size": 1, **encoder}
        given.pop("model_type", None)
        if given.get("position_embedding_type") in LEARNED:
            given.setdefault("max_position_embeddings", self._num_tokens_or(1))
        return VariantsConfig(**given)

    def _num_tokens_or(self, otherwise):
        """Tokens per image; `otherwise` where the sizes cannot be, which `check` says by name."""
        try:
            return max(self.num_tokens, 1)
        except (TypeError, ZeroDivisionError, ValueError):
            return otherwise

    def check(self):
        """Refuse what an image encoder cannot mean."""
        check_own_types(self)
        super().check()
        choices = IMAGE_CHOICES["patch_positions"]
        if self.patch_positions not in choices:
            raise ValueError(
                f"patch_positions={self.patch_positions!r} is unknown{nearest(self.patch_positions, choices)}; choose from "
                f"{list(choices)}"
            )
        for rule in image_rules(VariantsConfig):
            if rule.broken(self):
                raise ValueError(rule.text.format(c=self))

    # ---- what is derived ----
    @property
    def image_sides(self):
        """[height, width] of an image in pixels."""
        return _two(self.image_size)

    @property
    def patch_sides(self):
        """[height, width] of a patch in pixels."""
        return _two(self.patch_size)

    @property
    def grid(self):
        """(rows, columns) of patches."""
        return tuple(side // patch for side, patch in zip(self.image_sides, self.patch_sides, strict=True))

    @property
    def num_patches(self):
        return self.grid[0] * self.grid[1]

    @property
    def num_tokens(self):
        """Patches, and the class token where there is one."""
        return self.num_patches + int(self.class_token)

    # tools ask any config for these
    @property
    def hidden_size(self):
        return self.encoder.hidden_size

    @property
    def num_hidden_layers(self):
        return self.encoder.num_hidden_layers

    @property
    def num_attention_heads(self):
        return self.encoder.num_attention_heads

    @property
    def num_key_value_heads(self):
        return self.encoder.num_key_value_heads

    @property
    def initializer_range(self):
        return self.encoder.initializer_range


def check_own_types(config):
    """Refuse a field of the wrong type; what stands in `encoder` is checked by its own class."""
    if not (config.encoder is None or isinstance(config.encoder, dict) or hasattr(config.encoder, "layer_plan")):
        raise ValueError(f"encoder={config.encoder!r} must be None, a dict of VariantsConfig keys, or a VariantsConfig")
    own = {name: kind for name, kind in VariantsImageEncoderConfig.__annotations__.items() if name != "encoder"}
    check_types(config, own)


def _two(value):
    sides = list(value) if isinstance(value, (list, tuple)) else [value]
    return sides * 2 if len(sides) == 1 else sides


_AUTO_MAP = {
    "AutoConfig": "configuration_image_encoder.VariantsImageEncoderConfig",
    "AutoModel": "modeling_image_encoder.VariantsImageEncoder",
}

__all__ = ["VariantsImageEncoderConfig"]
