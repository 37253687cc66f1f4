"""Position schemes: rotary embedding of queries and keys, ALiBi slopes, and tables added to the embeddings.

Notable here: every constant keeps its dtype whatever the model is cast to, and is recomputed rather than moved, so neither
`model.to(bfloat16)` nor a load through the meta device can spoil it. A row's angles depend on that row alone.
"""

import math

import torch
from torch import nn
from transformers import initialization as init

from .rope_scaling import ROPE_SCALINGS


class ConstantBuffers(nn.Module):
    """A module whose buffers are constants of one dtype: kept so through casts, refilled after a load from the meta device."""

    def constants(self, device):
        """The constants by buffer name, computed on `device`."""
        raise ValueError(f"{type(self).__name__} names no constants")

    def register_constants(self):
        for name, value in self.constants(None).items():
            self.register_buffer(name, value, persistent=False)

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        for name, value in self.constants(next(self.buffers()).device).items():
            setattr(self, name, value)
        return self

    def fill(self):
        for name, value in self.constants(next(self.buffers()).device).items():
            init.copy_(getattr(self, name), value)


class VariantsRotaryEmbedding(ConstantBuffers):
    """Cosines and sines of one RoPE rule.

    Args:
        rope: flat dict in the standard form of `rope_parameters`.
        dim: number of rotated dimensions of a head.
    """

    def __init__(self, rope, dim):
        super().__init__()
        self.rule = ROPE_SCALINGS[rope["rope_type"]](rope, dim)
        self.register_constants()

    def constants(self, device):
        if self.rule.follows_length:
            return {"inv_freq": self.rule.inv_freq_at(torch.zeros((), dtype=torch.int64, device=device))}
        return {"inv_freq": self.rule.inv_freq(device)}

    @torch.no_grad()
    def forward(self, position_ids, lengths, dtype):
        """Args: position_ids [B, T]; lengths, {"prompt" and "current": [B, T]} tokens of each token's document; dtype.

        Returns cos and sin of shape [B, T, dim / 2].
        """
        kind = self.rule.follows_length
        inv_freq = self.inv_freq if kind is None else self.rule.inv_freq_at(lengths[kind])
        angles = position_ids.unsqueeze(-1).to(torch.float32) * inv_freq.to(torch.float32)
        scale = self.rule.factor_at(None if kind is None else lengths[kind])
        return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def spread_halves(cos, sin):
    """[B, T, d / 2] -> [B, 1, T, d] for dimensions i and i + d/2; the sine of the first of both is negative."""
    return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)


def spread_pairs(cos, sin):
    """[B, T, d / 2] -> [B, 1, T, d] for dimensions 2i and 2i + 1; the sine of the first of both is negative."""
    return torch.stack((cos, cos), dim=-1).flatten(-2).unsqueeze(1), torch.stack((-sin, sin), dim=-1).flatten(-2).unsqueeze(1)


def swap_halves(x):
    return x.roll(x.shape[-1] // 2, dims=-1)


def swap_pairs(x):
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


# rope_interleaved -> the layout: dimensions 2i and 2i + 1 turn together (the paper's), or i and i + d/2 (Llama's)
SPREADS = {True: spread_pairs, False: spread_halves}
SWAPS = {True: swap_pairs, False: swap_halves}


class RotaryTurn:
    """Turns the leading dimensions of heads; built once with the layout, `NoTurn` stands in where nothing turns.

    (a, b) -> (a cos - b sin, b cos + a sin) is x cos + swapped(x) (-sin, sin), which rounds as the former does, in four
    operations instead of nine.
    """

    def __init__(self, interleaved):
        self.swap = SWAPS[interleaved]

    def __call__(self, x, position_embeddings):
        """x [B, heads, T, D]; position_embeddings: cos and signed sin of [B, 1, T, d] with d <= D, from `SPREADS`."""
        cos, sin = position_embeddings
        width = cos.shape[-1]
        if width == x.shape[-1]:
            return x * cos + self.swap(x) * sin
        turned = x[..., :width]
        return torch.cat((turned * cos + self.swap(turned) * sin, x[..., width:]), dim=-1)


class NoTurn:
    def __call__(self, x, position_embeddings):
        return x


def alibi_slopes(num_heads, device=None):
    """ALiBi slopes of any head count, fp32 [num_heads] (Press et al. 2021, arXiv:2108.12409 and its reference code).

    With P the largest power of two not above n: 2^(-8i/P) for i = 1..P, then 2^(-8i/2P) for odd i = 1, 3, 5 ...
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    slopes += [2 ** (-4 * i / power) for i in range(1, 2 * (num_heads - power), 2)]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


class QueryTemperature:
    """A factor per query that grows with its position: 1 + scale * log(1 + floor((position + offset) / floor_scale)).

    Keeps attention sharp over long contexts (Nakanishi 2025, arXiv:2501.19399; stepped as in Llama 4 and Ministral 3).
    """

    def __init__(self, scale, floor_scale, offset):
        self.scale, self.floor_scale, self.offset = scale, floor_scale, offset

    def __call__(self, position_ids):
        """position_ids [B, T] -> factors [B, 1, T, 1] in fp32."""
        steps = torch.floor((position_ids.float() + self.offset) / self.floor_scale)
        return (1.0 + self.scale * torch.log1p(steps))[:, None, :, None]


class AlibiPositions(ConstantBuffers):
    """Holds the slopes; the distances are multiplied in by the attention functions, block by block."""

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.register_constants()

    def constants(self, device):
        return {"slopes": alibi_slopes(self.num_heads, device)}

    def forward(self, inputs_embeds, position_ids):
        return inputs_embeds


class LearnedPositions(nn.Embedding):
    """A trained table of `max_position_embeddings` rows (GPT-2); row = position + offset (OPT).

    Under `position_source="input_ids"` the row before the first is that of pads, and is not trained (RoBERTa).
    """

    def __init__(self, config):
        offset, skips_pads = config.position_embedding_offset, config.position_source == "input_ids"
        rows = config.max_position_embeddings + offset
        super().__init__(rows, config.table_width, padding_idx=offset - 1 if skips_pads else None)
        self.offset = offset

    def forward(self, inputs_embeds, position_ids):
        return inputs_embeds + super().forward(position_ids + self.offset)


def positions_of_ids(input_ids, pad_token_id):
    """Position [B, T] of each id among those of its row that are no pads; -1 for a pad (fairseq)."""
    real = input_ids != pad_token_id
    return real.long().cumsum(dim=1) * real - 1


SINUSOID_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class SinusoidalPositions(ConstantBuffers):
    """Sines and cosines, interleaved: PE(p, 2i) = sin(p / 10000^(2i/H)), PE(p, 2i+1) = cos(same).

    Vaswani et al. 2017, arXiv:1706.03762 §3.5. Computed for the positions asked for, so there is no longest position. An
    angle in fp32 is off by up to the position times 6e-8, hence `sinusoid_dtype`.
    """

    def __init__(self, config):
        super().__init__()
        self.width, self.offset = config.table_width, config.position_embedding_offset
        self.dtype = SINUSOID_DTYPES[config.sinusoid_dtype]
        self.register_constants()

    def constants(self, device):
        exponent = torch.arange(0, self.width, 2, dtype=torch.int64, device=device).to(self.dtype)
        return {"inv_freq": 1.0 / 10000.0 ** (exponent / self.width)}

    def forward(self, inputs_embeds, position_ids):
        angles = (position_ids + self.offset).unsqueeze(-1).to(self.dtype) * self.inv_freq.to(self.dtype)
        return inputs_embeds + self.arrange(angles.sin(), angles.cos()).to(inputs_embeds.dtype)

    def arrange(self, sines, cosines):
        return torch.stack((sines, cosines), dim=-1).flatten(-2)


class ConcatenatedSinusoidalPositions(SinusoidalPositions):
    """All sines, then all cosines, at the paper's frequencies (CTRL 2019, arXiv:1909.05858 §3)."""

    def arrange(self, sines, cosines):
        return torch.cat((sines, cosines), dim=-1)


class HalvedSinusoidalPositions(SinusoidalPositions):
    """All sines, then all cosines: PE(p, i) = sin(p / 10000^(i/(h-1))) and PE(p, h+i) = cos(same) with h = H/2.

    The form of tensor2tensor and fairseq (XGLM 2021, arXiv:2112.10668).
    """

    def constants(self, device):
        half = self.width // 2
        exponent = torch.arange(half, dtype=torch.int64, device=device).to(self.dtype)
        return {"inv_freq": torch.exp(exponent * -(math.log(10000) / (half - 1)))}

    def arrange(self, sines, cosines):
        return torch.cat((sines, cosines), dim=-1)


class RelativePositions(nn.Embedding):
    """Holds the table [buckets, heads] of T5's relative bias (`relative_bias`), one for all layers of a stack."""

    def __init__(self, config):
        super().__init__(config.relative_attention_num_buckets, config.num_attention_heads)

    def table(self, index):
        """The table of layer `index`."""
        return self.weight

    def forward(self, inputs_embeds, position_ids):
        return inputs_embeds


class RelativePositionsPerLayer(nn.ModuleDict):
    """A table of `RelativePositions` for each layer (UMT5 2023, arXiv:2304.09151).

    No ModuleList: what looks for the layers of a model takes its first list for them.
    """

    def __init__(self, config):
        super().__init__({str(index): RelativePositions(config) for index in range(config.num_hidden_layers)})

    def table(self, index):
        return self[str(index)].weight

    def forward(self, inputs_embeds, position_ids):
        return inputs_embeds


# relative_attention_per_layer -> what holds the tables
RELATIVE_TABLES = {False: RelativePositions, True: RelativePositionsPerLayer}


def build_relative_positions(config):
    return RELATIVE_TABLES[config.relative_attention_per_layer](config)


class LearnedRelativePositions(LearnedPositions):
    """A trained table of positions, and `relative`, the tables of the relative bias (MPNet)."""

    def __init__(self, config):
        super().__init__(config)
        self.relative = build_relative_positions(config)

    def table(self, index):
        return self.relative.table(index)


class NoPositions(nn.Module):
    """Adds nothing to the embeddings: for `none`, and for `rope`, which acts inside attention."""

    def __init__(self, config):
        super().__init__()

    def forward(self, inputs_embeds, position_ids):
        return inputs_embeds


POSITIONS = {
    "rope": NoPositions,
    "alibi": AlibiPositions,
    "learned": LearnedPositions,
    "learned_relative": LearnedRelativePositions,
    "sinusoidal": SinusoidalPositions,
    "sinusoidal_halves": HalvedSinusoidalPositions,
    "sinusoidal_concat": ConcatenatedSinusoidalPositions,
    "relative": build_relative_positions,
    "none": NoPositions,
}
