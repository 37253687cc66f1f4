"""Fewer tokens per image: patches pooled, shuffled into channels, or resampled by learned queries.

Notable here: how many tokens an image becomes is a plain function of its grid (`compressed_grid`, `tokens_of_grid`), which
config, processor and model all ask; so the number of placeholders and the number of features cannot come from two rules.
"""

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN

SQUARES = ("pool", "pixel_shuffle")


def compressed_grid(compression, factor, rows, columns):
    """(rows, columns) of the grid of tokens that a grid of patches becomes under `pool`, `pixel_shuffle` or `none`.

    Raises:
        ValueError: where squares of `factor` x `factor` patches do not tile the grid.
    """
    if compression not in SQUARES:
        return rows, columns
    if rows % factor or columns % factor:
        raise ValueError(
            f"token_compression={compression!r} joins squares of compression_factor={factor} patches, which do not tile an "
            f"image of {rows} x {columns} patches; choose a factor that divides both, or resize the images"
        )
    return rows // factor, columns // factor


def tokens_of_grid(compression, factor, num_resampler_tokens, rows, columns, kept_class_token=False):
    """Number of features that an image of `rows` x `columns` patches becomes, delimiters not counted."""
    if compression == "resampler":
        return num_resampler_tokens
    rows, columns = compressed_grid(compression, factor, rows, columns)
    return rows * columns + int(kept_class_token)


class NoCompression(nn.Module):
    """Every patch stays a token."""

    def __init__(self, config):
        super().__init__()
        self.width = config.vision_width

    def forward(self, features, grid):
        return features


class Pool(nn.Module):
    """The mean of each square of patches: [N, rows * columns, D] -> [N, rows * columns / factor^2, D]."""

    def __init__(self, config):
        super().__init__()
        self.factor, self.width = config.compression_factor, config.vision_width

    def forward(self, features, grid):
        return squares(features, grid, self.factor).mean(dim=(3, 5)).flatten(1, 2)


class PixelShuffle(nn.Module):
    """Each square of patches as one token, its channels in the order (row, column, channel) of the square (Idefics3)."""

    def __init__(self, config):
        super().__init__()
        self.factor = config.compression_factor
        self.width = config.vision_width * self.factor**2

    def forward(self, features, grid):
        blocks = squares(features, grid, self.factor)
        return blocks.permute(0, 1, 2, 3, 5, 4).flatten(3).flatten(1, 2)


def squares(features, grid, factor):
    """[N, rows * columns, D] -> [N, rows / f, columns / f, row in square, D, column in square]."""
    rows, columns = compressed_grid("pool", factor, *grid)
    split = features.view(features.shape[0], rows, factor, columns, factor, features.shape[-1])
    return split.permute(0, 1, 3, 2, 5, 4)


class Resampler(nn.Module):
    """Learned queries that read the patches by cross-attention, layer by layer: [N, P, D] -> [N, queries, D].

    Each layer is pre-norm, its keys are the patches and the queries themselves (Flamingo, arXiv:2204.14198 §2.1 and A.1.1).
    """

    def __init__(self, config):
        super().__init__()
        self.width = config.vision_width
        self.std = config.initializer_range
        self.queries = nn.Parameter(torch.empty(config.num_resampler_tokens, self.width))
        self.layers = nn.ModuleList(ResamplerLayer(config) for _ in range(config.num_resampler_layers))
        self.norm = nn.LayerNorm(self.width)

    def fill(self):
        init.normal_(self.queries, mean=0.0, std=self.std)

    def forward(self, features, grid):
        states = self.queries.unsqueeze(0).expand(features.shape[0], -1, -1)
        for layer in self.layers:
            states = layer(states, features)
        return self.norm(states)


class ResamplerLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, self.heads = config.vision_width, config.num_resampler_heads
        self.norm_queries, self.norm_patches, self.norm_mlp = (nn.LayerNorm(width) for _ in range(3))
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act_fn = ACT2FN[config.projector_hidden_act]

    def forward(self, states, features):
        queries = self.norm_queries(states)
        keys = torch.cat((self.norm_patches(features), queries), dim=1)
        heads = (self._heads(part) for part in (self.q_proj(queries), self.k_proj(keys), self.v_proj(keys)))
        read = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        states = states + self.o_proj(read)
        return states + self.fc2(self.act_fn(self.fc1(self.norm_mlp(states))))

    def _heads(self, states):
        return states.view(*states.shape[:2], self.heads, -1).transpose(1, 2)


# token_compression -> module(features [N, P, D], grid (rows, columns)) -> [N, tokens, module.width]
COMPRESSIONS = {"none": NoCompression, "pool": Pool, "pixel_shuffle": PixelShuffle, "resampler": Resampler}
