"""What every RoPE rule says, written from the papers in float64: the standard that a model is held against.

Notable here: numpy and plain loops, sharing nothing with the code that models run, so that an error in one shows in
the other.
"""

import math

import numpy as np


def expected_rotation(rope, dim, length):
    """(frequencies [dim / 2], attention factor) that a flat RoPE dict means for a row of `length` tokens.

    Raises:
        ValueError: for an unknown rope_type.
    """
    if rope["rope_type"] not in _FORMULAS:
        raise ValueError(f"rope_type={rope['rope_type']!r} is unknown; choose from {list(_FORMULAS)}")
    frequencies, factor = _FORMULAS[rope["rope_type"]](rope, dim, length)
    return np.asarray(frequencies, dtype=np.float64), float(factor)


def _geometric(theta, dim):
    return [theta ** (-2 * i / dim) for i in range(dim // 2)]


def _default(rope, dim, length):
    return _geometric(rope["rope_theta"], dim), 1.0


def _linear(rope, dim, length):
    return [frequency / rope["factor"] for frequency in _geometric(rope["rope_theta"], dim)], 1.0


def _ntk(rope, dim, length):
    return _geometric(rope["rope_theta"] * rope["factor"] ** (dim / (dim - 2)), dim), 1.0


def _dynamic(rope, dim, length):
    ratio = max(length, rope["original_max_position_embeddings"]) / rope["original_max_position_embeddings"]
    stretch = rope["factor"] * ratio - (rope["factor"] - 1)
    return _geometric(rope["rope_theta"] * stretch ** (dim / (dim - 2)), dim), 1.0


def _yarn(rope, dim, length):
    """A frequency that turns more than beta_fast times within the original length is kept, one that turns less than
    beta_slow times is divided by the factor; between, a ramp that is linear in the index of the frequency.
    """
    theta, factor, original = rope["rope_theta"], rope["factor"], rope["original_max_position_embeddings"]

    def index_with_turns(turns):
        return dim / 2 * math.log(original / (2 * math.pi * turns), theta)

    first = index_with_turns(rope.get("beta_fast") or 32)
    last = index_with_turns(rope.get("beta_slow") or 1)
    if rope.get("truncate") is None or rope["truncate"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    frequencies = []
    for index, frequency in enumerate(_geometric(theta, dim)):
        share = (index - first) / (last - first if last != first else 0.001)
        share = min(max(share, 0.0), 1.0)
        frequencies.append(frequency * (1 - share) + frequency / factor * share)
    return frequencies, _yarn_attention_factor(rope)


def _yarn_attention_factor(rope):
    def temperature(mscale):
        return 0.1 * mscale * math.log(rope["factor"]) + 1 if rope["factor"] > 1 else 1.0

    if rope.get("attention_factor") is not None:
        return rope["attention_factor"]
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return temperature(rope["mscale"]) / temperature(rope["mscale_all_dim"])
    return temperature(1.0)


def _llama3(rope, dim, length):
    original, low, high = (rope[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    frequencies = []
    for frequency in _geometric(rope["rope_theta"], dim):
        turns = original * frequency / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        frequencies.append(kept * frequency + (1 - kept) * frequency / rope["factor"])
    return frequencies, 1.0


def _longrope(rope, dim, length):
    original = rope["original_max_position_embeddings"]
    divisors = rope["long_factor"] if length > original else rope["short_factor"]
    frequencies = [f / d for f, d in zip(_geometric(rope["rope_theta"], dim), divisors, strict=True)]
    if rope.get("attention_factor") is not None:
        return frequencies, rope["attention_factor"]
    if rope.get("short_mscale") is not None:
        return frequencies, rope["long_mscale"] if length > original else rope["short_mscale"]
    factor = rope["factor"]
    return frequencies, math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


_FORMULAS = {
    "default": _default,
    "linear": _linear,
    "ntk": _ntk,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
