"""From the states of an image tower to what a language model reads.

Notable here: compression, norm, projection and delimiters in one module, `multi_modal_projector`, that gives each image as a
[N, hidden] of its own, so images of different sizes mix freely. `PROJECTORS` is the contents.
"""

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN

from .norms import VariantsLayerNorm, VariantsRMSNorm
from .null_modules import Identity
from .token_compression import COMPRESSIONS


class AffineProjector(nn.Module):
    """v = W f + b."""

    def __init__(self, config, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out, bias=config.projector_bias)

    def forward(self, features):
        return self.linear(features)


class MLPProjector(nn.Module):
    """v = W2 act(W1 f + b1) + b2."""

    parts = 1

    def __init__(self, config, width, out):
        super().__init__()
        inner = config.projector_intermediate_size
        self.linear_1 = nn.Linear(width, self.parts * inner, bias=config.projector_bias)
        self.act = ACT2FN[config.projector_hidden_act]
        self.linear_2 = nn.Linear(inner, out, bias=config.projector_bias)

    def forward(self, features):
        return self.linear_2(self.act(self.linear_1(features)))


class GatedProjector(MLPProjector):
    """v = W2 (a * act(g)) + b2 with [a, g] = W1 f + b1."""

    parts = 2

    def forward(self, features):
        values, gate = self.linear_1(features).chunk(2, dim=-1)
        return self.linear_2(self.act(gate) * values)


# projector -> module(features [N, tokens, width]) -> [N, tokens, out]
PROJECTORS = {"affine": AffineProjector, "mlp": MLPProjector, "gated": GatedProjector}


def _rms_norm(config, width):
    text = config.text_config
    how = {"unit_offset": text.norm_unit_offset, "weight_in_fp32": text.norm_weight_in_fp32}
    return VariantsRMSNorm(width, eps=config.projector_norm_eps, **how)


# projector_norm -> (config, width) -> the norm before the projector
PROJECTOR_NORMS = {
    "none": lambda config, width: Identity(),
    "layernorm": lambda config, width: VariantsLayerNorm(width, eps=config.projector_norm_eps),
    "rmsnorm": _rms_norm,
}


class ImageDelimiters(nn.Module):
    """Learned vectors [IMG] and [/IMG] around the features of each image: [N, tokens, H] -> [N, tokens + 2, H]."""

    def __init__(self, width, std):
        super().__init__()
        self.std = std
        self.start, self.end = (nn.Parameter(torch.empty(width)) for _ in range(2))

    def fill(self):
        for vector in (self.start, self.end):
            init.normal_(vector, mean=0.0, std=self.std)

    def forward(self, features):
        start, end = (vector.to(features.dtype).expand(features.shape[0], 1, -1) for vector in (self.start, self.end))
        return torch.cat((start, features, end), dim=1)


class VisionBridge(nn.Module):
    """Tower features [N, patches, width] of images of one size -> what the language model reads of each, [N, tokens, out].

    Args:
        config: a `VariantsVisionConfig`.
        out: width of the language model's embeddings, or of the states that its cross-attention reads.
    """

    def __init__(self, config, out):
        super().__init__()
        self.compression = COMPRESSIONS[config.token_compression](config)
        self.norm = PROJECTOR_NORMS[config.projector_norm](config, self.compression.width)
        self.projector = PROJECTORS[config.projector](config, self.compression.width, out)
        self.delimiters = ImageDelimiters(out, config.initializer_range) if config.image_delimiters else Identity()

    def forward(self, features, grid):
        return self.delimiters(self.projector(self.norm(self.compression(features, grid))))
