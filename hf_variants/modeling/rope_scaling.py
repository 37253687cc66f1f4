"""RoPE frequency rules: one small class per way of stretching the context.

Notable here: a rule is plain numbers (a RoPE dict and the rotary width), so it can be read and tested alone; only the two
rules with `follows_length` look at how long a document is, and they take that length as a tensor, one entry per token. One
cache never mixes two rotations: `dynamic` keeps the frequencies its prompt chose ("prompt"), `longrope` follows the length
reached so far ("current"), for which the model recomputes the cache when the boundary is crossed.
"""

import math

import torch


class DefaultRope:
    """theta^(-2i/d) (Su et al. 2021, arXiv:2104.09864).

    Args:
        rope: flat dict in the standard form of `rope_parameters`.
        dim: number of rotated dimensions d of a head.
    """

    follows_length = None
    attention_factor = 1.0

    def __init__(self, rope, dim):
        self.rope, self.dim, self.theta = rope, dim, float(rope["rope_theta"])
        self.original = rope.get("original_max_position_embeddings")

    def inv_freq(self, device=None):
        """Frequencies in fp32, shape [d / 2]."""
        return self._powers(self.theta, device)

    def factor_at(self, lengths):
        """What cosines and sines are multiplied by, for tokens whose documents have `lengths` tokens (None: not known)."""
        return self.attention_factor

    def _powers(self, theta, device):
        exponent = torch.arange(0, self.dim, 2, dtype=torch.int64, device=device).to(torch.float32) / self.dim
        return 1.0 / (theta**exponent)


class LinearRope(DefaultRope):
    """Frequencies divided by `factor`: positions are interpolated (Chen et al. 2023, arXiv:2306.15595)."""

    def inv_freq(self, device=None):
        return super().inv_freq(device) / self.rope["factor"]


class NtkRope(DefaultRope):
    """theta * factor^(d / (d - 2)), whatever the length (Peng et al. 2023, arXiv:2309.00071 §3.1)."""

    def inv_freq(self, device=None):
        return self._powers(self.theta * self.rope["factor"] ** (self.dim / (self.dim - 2)), device)


class DynamicRope(DefaultRope):
    """theta * (factor * L / L0 - (factor - 1))^(d / (d - 2)) once a row of length L is longer than the original L0.

    Peng et al. 2023, arXiv:2309.00071 §3.3, in transformers' form.
    """

    follows_length = "prompt"

    def inv_freq_at(self, lengths):
        """Frequencies of tokens whose documents have `lengths` tokens, shape [*lengths.shape, d / 2]."""
        stretch = lengths.to(torch.float32).clamp(min=self.original) * (self.rope["factor"] / self.original)
        theta = self.theta * (stretch - (self.rope["factor"] - 1)) ** (self.dim / (self.dim - 2))
        exponent = torch.arange(0, self.dim, 2, dtype=torch.int64, device=lengths.device).to(torch.float32) / self.dim
        return 1.0 / (theta.unsqueeze(-1) ** exponent)


class YarnRope(DefaultRope):
    """High frequencies kept, low ones divided by `factor`, a linear ramp between, and a temperature on the scores.

    Peng et al. 2023, arXiv:2309.00071 §3.4. `attention_factor` multiplies cosines and sines, so the scores by its square:
    given explicitly it is used as it is; else `mscale` and `mscale_all_dim` (both non-zero) give their ratio, as in
    DeepSeek; else it is 0.1 ln(factor) + 1.
    """

    def __init__(self, rope, dim):
        super().__init__(rope, dim)
        self.factor = rope["factor"]
        self.attention_factor = self._attention_factor()

    def inv_freq(self, device=None):
        positions = self.theta ** (torch.arange(0, self.dim, 2, device=device).to(torch.float32) / self.dim)
        low, high = self._band()
        ramp = (torch.arange(self.dim // 2, dtype=torch.float32, device=device) - low) / (high - low)
        keep = 1 - ramp.clamp(0, 1)
        return (1.0 / (self.factor * positions)) * (1 - keep) + (1.0 / positions) * keep

    def _band(self):
        def dimension_of(rotations):
            return self.dim * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(self.theta))

        low = dimension_of(self.rope.get("beta_fast") or 32)
        high = dimension_of(self.rope.get("beta_slow") or 1)
        truncate = self.rope.get("truncate")
        if truncate is None or truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        return low, high + 0.001 if low == high else high

    def _attention_factor(self):
        given = self.rope.get("attention_factor")
        if given is not None:
            return float(given)
        mscale, mscale_all_dim = self.rope.get("mscale"), self.rope.get("mscale_all_dim")
        if mscale and mscale_all_dim:
            return yarn_mscale(self.factor, mscale) / yarn_mscale(self.factor, mscale_all_dim)
        return yarn_mscale(self.factor)


def yarn_mscale(factor, mscale=1.0):
    """0.1 * mscale * ln(factor) + 1, or 1 where nothing is stretched."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


class Llama3Rope(DefaultRope):
    """Wavelengths longer than L0 / low_freq_factor are divided by `factor`, shorter than L0 / high_freq_factor are kept.

    Between the two the frequencies are blended linearly in L0 / wavelength (Llama 3.1).
    """

    def inv_freq(self, device=None):
        inv_freq = super().inv_freq(device)
        factor, low, high = (self.rope[key] for key in ("factor", "low_freq_factor", "high_freq_factor"))
        wavelength = 2 * math.pi / inv_freq
        scaled = torch.where(wavelength > self.original / low, inv_freq / factor, inv_freq)
        smooth = (self.original / wavelength - low) / (high - low)
        blended = (1 - smooth) * scaled / factor + smooth * scaled
        between = ~(wavelength < self.original / high) & ~(wavelength > self.original / low)
        return torch.where(between, blended, scaled)


class LongRope(DefaultRope):
    """Each frequency divided by its own factor, from one list up to the original length and from another beyond it.

    Ding et al. 2024, arXiv:2402.13753. The switch is at lengths strictly greater than the original. `attention_factor`
    defaults to sqrt(1 + ln(factor) / ln(L0)) at every length; `short_mscale` and `long_mscale` name one for either side of the
    original length (Phi-3.5-MoE).
    """

    follows_length = "current"

    def __init__(self, rope, dim):
        super().__init__(rope, dim)
        given, factor = rope.get("attention_factor"), rope["factor"]
        grown = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(self.original))
        self.attention_factor = float(given) if given is not None else grown

    def factor_at(self, lengths):
        short, long = self.rope.get("short_mscale"), self.rope.get("long_mscale")
        if short is None or short == long:
            return self.attention_factor if short is None else short
        reached = (lengths > self.original).unsqueeze(-1)
        return torch.where(reached, torch.full_like(lengths, long, dtype=torch.float32).unsqueeze(-1), short)

    def inv_freq_at(self, lengths):
        """Frequencies of tokens whose documents have `lengths` tokens, shape [*lengths.shape, d / 2]."""
        exponent = torch.arange(0, self.dim, 2, dtype=torch.int64, device=lengths.device).to(torch.float32) / self.dim
        short, long = (
            1.0 / (torch.tensor(self.rope[key], dtype=torch.float32, device=lengths.device) * self.theta**exponent)
            for key in ("short_factor", "long_factor")
        )
        return torch.where((lengths > self.original).unsqueeze(-1), long, short)


ROPE_SCALINGS = {
    "default": DefaultRope,
    "linear": LinearRope,
    "ntk": NtkRope,
    "dynamic": DynamicRope,
    "yarn": YarnRope,
    "llama3": Llama3Rope,
    "longrope": LongRope,
}
