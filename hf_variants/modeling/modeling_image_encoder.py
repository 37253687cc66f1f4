"""An image encoder built from the family's own stack: patches in, hidden states out.

Notable here: an image becomes a row of embeddings and the stack does the rest, so every attention, norm, feed-forward and
expert toggle works on images; ViT, SigLIP and CLIP are particular choices of it.
"""

import torch
from torch import nn
from transformers import initialization as init
from transformers.utils import can_return_tuple

from .configuration_image_encoder import VariantsImageEncoderConfig
from .null_modules import Identity
from .positions import ConstantBuffers
from .variants_base import VariantsPreTrainedModel
from .variants_model import VariantsModel


class SinusoidalPatchPositions(ConstantBuffers):
    """Sines and cosines of the row in the first half of the width, of the column in the second (MAE 2021, §A.1)."""

    def __init__(self, config):
        super().__init__()
        self.grid, self.width = config.grid, config.encoder.embedding_size
        self.register_constants()

    def constants(self, device):
        quarter = self.width // 4
        rates = 10000.0 ** (-torch.arange(quarter, dtype=torch.float32, device=device) / quarter)
        sides = [torch.arange(side, dtype=torch.float32, device=device)[:, None] * rates for side in self.grid]
        rows, columns = (torch.cat((angles.sin(), angles.cos()), dim=1) for angles in sides)
        shape = (*self.grid, self.width // 2)
        table = torch.cat((rows[:, None].expand(shape), columns[None].expand(shape)), dim=-1)
        return {"table": table.flatten(0, 1)}

    def forward(self, patches):
        return patches + self.table.to(patches.dtype)


class LearnedPatchPositions(nn.Module):
    """A trained vector per row of patches plus one per column (NaViT 2023, arXiv:2307.06304 §2.1)."""

    def __init__(self, config):
        super().__init__()
        rows, columns = config.grid
        self.rows, self.columns = (nn.Embedding(side, config.encoder.embedding_size) for side in (rows, columns))

    def forward(self, patches):
        table = self.rows.weight[:, None] + self.columns.weight[None]
        return patches + table.flatten(0, 1)


class NoPatchPositions(Identity):
    """Stands in where the positions are those of the stack."""

    def __init__(self, config):
        super().__init__()


PATCH_POSITIONS = {
    "encoder": NoPatchPositions,
    "sinusoidal_2d": SinusoidalPatchPositions,
    "learned_2d": LearnedPatchPositions,
}


class ClassToken(nn.Module):
    """A learned vector before the patches [N, P, width]."""

    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(width))

    def forward(self, patches):
        return torch.cat((self.embedding.expand(patches.shape[0], 1, -1), patches), dim=1)


class VariantsImageEncoder(VariantsPreTrainedModel):
    """Patches of an image through a bidirectional stack of the family.

    Args:
        config: a `VariantsImageEncoderConfig`.
    """

    config: VariantsImageEncoderConfig
    base_model_prefix = "image_encoder"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _input_embed_layer = "patch_embedding"
    _foreign_parts = ()

    def __init__(self, config):
        super().__init__(config)
        width = config.encoder.embedding_size
        self.patch_embedding = nn.Conv2d(
            config.num_channels, width, config.patch_sides, stride=config.patch_sides, bias=config.patch_bias
        )
        self.patch_positions = PATCH_POSITIONS[config.patch_positions](config)
        self.class_token = ClassToken(width) if config.class_token else Identity()
        self.encoder = VariantsModel(config.encoder, add_pooling_layer=False)
        # no token ever enters: the table would be a weight that nothing reads
        self.encoder.embed_tokens = Identity()
        self.post_init()

    def _init_weights(self, module):
        super()._init_weights(module)
        std = self.config.initializer_range
        if isinstance(module, nn.Conv2d):
            init.normal_(module.weight, mean=0.0, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, ClassToken):
            init.normal_(module.embedding, mean=0.0, std=std)

    @can_return_tuple
    def forward(self, pixel_values: torch.FloatTensor, **kwargs):
        r"""Run the encoder.

        Args:
            pixel_values: [N, channels, height, width], as the config's num_channels and image_size say.

        Returns:
            The stack's output: `last_hidden_state` [N, tokens, hidden], class token first where there is one, behind the
            final norm; with `output_hidden_states=True`, `hidden_states` before it, patches row by row.

        Raises:
            ValueError: for images of another size or number of channels.
        """
        check_pixels(pixel_values, self.config.num_channels, self.config.image_sides)
        patches = self.patch_embedding(pixel_values.to(self.patch_embedding.weight.dtype)).flatten(2).transpose(1, 2)
        return self.encoder(inputs_embeds=self.class_token(self.patch_positions(patches)), **kwargs)


def check_pixels(pixel_values, num_channels, sides):
    """Raise a ValueError unless `pixel_values` is [N, num_channels, *sides]; sides None for any."""
    shape = tuple(pixel_values.shape)
    if len(shape) != 4:
        raise ValueError(f"pixel_values has the shape {shape}; give [images, channels, height, width]")
    if shape[1] != num_channels:
        raise ValueError(f"pixel_values has {shape[1]} channels, but the vision config says num_channels={num_channels}")
    if sides is not None and shape[2:] != tuple(sides):
        raise ValueError(
            f"pixel_values is {shape[2]} x {shape[3]} pixels, but the vision config says image_size={tuple(sides)} (height, "
            "width): resize the images, as the image processor does"
        )


__all__ = ["VariantsImageEncoder"]
