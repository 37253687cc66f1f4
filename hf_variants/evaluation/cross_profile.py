"""What a generated token of an encoder-decoder costs against the length of what the encoder read: counted, and measured.

Notable here: every token attends to all states of the encoder, whose keys and values are made once, so FLOPs and bytes are a
straight line in that length: a part that every token has, and a slope per state. Measured are steps behind the first, which
alone makes those keys and values.
"""

import statistics
import time
from dataclasses import asdict, dataclass, field

import torch

from ..analysis.cache_size import kv_cache_size
from ..analysis.flops import flops_per_token
from .cache_profile import cache_bytes


@dataclass
class CrossProfile:
    """One encoder-decoder at several lengths of its encoder.

    Attributes:
        length: tokens that the decoder has written before. batch_size, dtype: of the caches, and of the weights if measured.
        points: list of {"states", "flops", "cross_flops", "self_bytes", "cross_bytes"} by length of the encoder: FLOPs of one
            token of one row, `cross_flops` being the scores with the states and their weighted sum; bytes of both caches, all
            rows. Where measured, also "measured_cross_bytes", "seconds" (of a step, median) and "encoder_seconds".
        flops_per_state, bytes_per_state: slopes of the lines.
        seconds_per_state, linearity: slope and R^2 of the line through the measured seconds; None where not measured.
    """

    name: str
    length: int
    batch_size: int
    dtype: str
    flops_per_state: float = 0.0
    bytes_per_state: float = 0.0
    points: list = field(default_factory=list)
    seconds_per_state: float | None = None
    linearity: float | None = None

    def as_dict(self):
        """Plain data."""
        return asdict(self)


def count_cross(name, config, lengths, length=32, batch_size=1, dtype=torch.float32):
    """`CrossProfile` from a `VariantsSeq2SeqConfig` alone.

    Args:
        lengths: of the encoder, in tokens. length: tokens written before the one that is counted.

    Raises:
        ValueError: for a config that is no encoder-decoder, fewer than two lengths, or one below 1 or beyond its positions.
    """
    check_lengths(name, config, lengths, length, batch_size)
    decoder, width = config.decoder, dtype.itemsize
    profile = CrossProfile(name, length, batch_size, str(dtype).removeprefix("torch."))
    alone = flops_per_token(decoder, length + 1, "decode", encoder_length=0).total
    self_bytes = kv_cache_size(decoder, length, batch_size, width, encoder_length=0).bytes
    for states in lengths:
        flops = flops_per_token(decoder, length + 1, "decode", encoder_length=states).total
        both = kv_cache_size(decoder, length, batch_size, width, encoder_length=states).bytes
        counted = {"flops": flops, "cross_flops": flops - alone, "self_bytes": self_bytes, "cross_bytes": both - self_bytes}
        profile.points.append({"states": states, **counted})
    first, last = profile.points[0], profile.points[-1]
    run = last["states"] - first["states"]
    profile.flops_per_state = (last["flops"] - first["flops"]) / run
    profile.bytes_per_state = (last["cross_bytes"] - first["cross_bytes"]) / run
    return profile


def check_lengths(name, config, lengths, length, batch_size):
    """Refuse what `count_cross` cannot count. Raises ValueError."""
    if not getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is no encoder-decoder, so no token of it reads an encoder; profile-cache is for one stack")
    if length < 1 or batch_size < 1:
        raise ValueError(f"length={length} and batch_size={batch_size} must be at least 1")
    if len(set(lengths)) < 2 or min(lengths) < 1 or list(lengths) != sorted(set(lengths)):
        raise ValueError(f"encoder lengths {list(lengths)} must be at least two, rising, and at least 1")
    limit = config.encoder.max_position_embeddings
    if max(lengths) > limit:
        raise ValueError(f"{name}: an encoder length of {max(lengths)} exceeds encoder.max_position_embeddings={limit}")


@torch.no_grad()
def measure_cross(profile, config, new_tokens=16, repeats=5, seed=0):
    """Fill the measured parts of a profile with a model of random weights; returns the profile.

    Each repeat runs through all lengths, so that what else the machine does falls on all of them.

    Raises:
        ValueError: for fewer than 2 new tokens, or a decoder whose positions end before them.
    """
    from ..modeling.modeling_variants_seq2seq import VariantsForSeq2SeqLM

    needed = profile.length + 1 + new_tokens
    if new_tokens < 2 or config.decoder.max_position_embeddings < needed:
        raise ValueError(
            f"{profile.name}: new_tokens={new_tokens} must be at least 2, and decoder.max_position_embeddings="
            f"{config.decoder.max_position_embeddings} at least the {needed} tokens that are written in all"
        )
    torch.manual_seed(seed)
    model = VariantsForSeq2SeqLM(config).to(getattr(torch, profile.dtype)).eval()
    seconds = {point["states"]: [] for point in profile.points}
    reading = {states: [] for states in seconds}
    for repeat in range(repeats + 1):
        for point in profile.points:
            read, step, held = _timed(model, point["states"], profile, new_tokens)
            if repeat:  # the first one warms up
                seconds[point["states"]].append(step)
                reading[point["states"]].append(read)
            point["measured_cross_bytes"] = held
    for point in profile.points:
        point["seconds"] = statistics.median(seconds[point["states"]])
        point["encoder_seconds"] = statistics.median(reading[point["states"]])
    states = [point["states"] for point in profile.points]
    profile.seconds_per_state, profile.linearity = straight_line(states, [point["seconds"] for point in profile.points])
    return profile


def _timed(model, states, profile, new_tokens):
    """(seconds of the encoder, median seconds of a step, bytes of the cross cache)."""
    ids = torch.randint(model.config.encoder.vocab_size, (profile.batch_size, states))
    began = time.perf_counter()
    encoded = model.get_encoder()(input_ids=ids)
    read = time.perf_counter() - began
    written = torch.randint(model.config.vocab_size, (profile.batch_size, profile.length))
    output = model(encoder_outputs=encoded, decoder_input_ids=written, use_cache=True)
    cache, steps = output.past_key_values, []
    held = cache_bytes(cache.cross_attention_cache)
    token = written[:, -1:]
    for _ in range(new_tokens):
        began = time.perf_counter()
        output = model(encoder_outputs=encoded, decoder_input_ids=token, past_key_values=cache, use_cache=True)
        token = output.logits[:, -1:].argmax(-1)
        steps.append(time.perf_counter() - began)
    return read, statistics.median(steps), held


def straight_line(x, y):
    """(slope, R^2) of the least-squares line through points."""
    x, y = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    dx, dy = x - x.mean(), y - y.mean()
    slope = (dx @ dy) / (dx @ dx)
    rest, spread = ((dy - slope * dx) ** 2).sum(), (dy**2).sum()
    return slope.item(), (1 - rest / spread).item() if spread > 0 else 1.0
