"""Key-value caches of several configs side by side: counted by layer kind, and measured while a model decodes.

Notable here: weights are random, for bytes and speed do not depend on them; what is measured are the tensors that the cache
holds, so a count that forgets a window or a shared head shows as a difference.
"""

import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass, field

import torch
from transformers.cache_utils import EncoderDecoderCache, QuantizedCache, StaticCache

from ..analysis.cache_size import (
    QUANTIZED,
    cached_numbers_per_token,
    check_cache,
    kv_cache_size,
    layer_bytes,
    number_bytes,
)
from ..modeling.layer_plan import cross_plan

MEASURED_IN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass
class CacheProfile:
    """One config at one length.

    Attributes:
        kinds: list of {"kind", "layers", "bytes_per_token", "bytes"} by layer kind: full, window W, chunk C, MLA, cross (whose
            bytes per token are those of one state).
        cache: a key of `analysis.cache_size.CACHES`. encoder_length: states that cross-attention keeps.
        bytes: predicted, of the whole batch; `bytes_per_token` while every layer grows, `bytes_per_token_beyond` afterwards.
        share_of_mha: bytes per token as a share of the same heads, each with keys and values of its own.
        measured_bytes: tensors of a cache after `length` tokens; None where not measured.
        tokens_per_second: of one row decoding greedily behind `length` tokens, on this machine; None where not measured, or
            with cross-attention, whose states come from another model. `processor_ms_per_token`: processor time of all
            threads for each of them.
        perplexity, perplexity_of_dynamic: of a text of `length` tokens read from this cache and from a dynamic one
            (`cache_perplexity.py`); None where not measured.
    """

    name: str
    length: int
    batch_size: int
    dtype: str
    bytes: int
    bytes_per_token: int
    bytes_per_token_beyond: int
    share_of_mha: float
    kinds: list = field(default_factory=list)
    cache: str = "dynamic"
    encoder_length: int = 0
    measured_bytes: int | None = None
    tokens_per_second: float | None = None
    processor_ms_per_token: float | None = None
    perplexity: float | None = None
    perplexity_of_dynamic: float | None = None

    def as_dict(self):
        """Plain data."""
        return asdict(self)


def count_cache(name, config, length, batch_size=1, dtype=torch.bfloat16, cache="dynamic", encoder_length=None):
    """`CacheProfile` from the config alone.

    Args:
        config: a `VariantsConfig`, or the config of an encoder-decoder, whose decoder is taken.
        cache: a key of `analysis.cache_size.CACHES`.
        encoder_length: states that cross-attention keeps; None: as many as tokens.

    Raises:
        ValueError: for an encoder, which has no cache; a length or batch below 1; a cache that the config cannot have; an
            encoder_length without cross-attention.
    """
    config = decoder_of(config)
    _refuse_uncountable(name, config, length, batch_size, cache, encoder_length)
    size = kv_cache_size(config, length, batch_size, dtype.itemsize, encoder_length, cache)
    heads = config.num_attention_heads * (config.query_head_dim + config.value_head_dim) * config.num_hidden_layers
    kinds = _own_kinds(config, length, batch_size, dtype.itemsize, cache)
    kinds += _cross_kinds(config, size.encoder_length, dtype.itemsize * batch_size)
    record = size.bytes - sum(row["bytes"] for row in kinds)
    if record:
        kinds.append({"kind": "record of the RoPE rule", "layers": 1, "bytes_per_token": record // length, "bytes": record})
    return CacheProfile(
        name=name,
        length=length,
        batch_size=batch_size,
        dtype=str(dtype).removeprefix("torch."),
        bytes=size.bytes,
        bytes_per_token=size.per_token,
        bytes_per_token_beyond=size.per_token_beyond,
        share_of_mha=size.per_token / (heads * dtype.itemsize * batch_size),
        kinds=kinds,
        cache=cache,
        encoder_length=size.encoder_length,
    )


def _refuse_uncountable(name, config, length, batch_size, cache, encoder_length):
    if not config.is_causal:
        raise ValueError(f"{name}: is_causal=False has no key-value cache; profile a decoder")
    if length < 1 or batch_size < 1:
        raise ValueError(f"length={length} and batch_size={batch_size} must be at least 1")
    check_cache(config, cache)
    if encoder_length is not None and not config.add_cross_attention:
        raise ValueError(
            f"{name}: encoder_length={encoder_length} is what cross-attention keeps, and it has none; leave it out"
        )
    if cache in QUANTIZED and config.add_cross_attention:
        raise ValueError(f"{name}: cache={cache!r} has no cross-attention; use 'dynamic' or 'static'")


def _own_kinds(config, length, batch_size, item_bytes, cache):
    """What layers keep of their own tokens, a dict for each kind of layer."""
    width = number_bytes(cache, item_bytes)
    layers, first = Counter(), {}
    for plan in config.layer_plan():
        kind = (_kind(plan), cached_numbers_per_token(config, plan))
        layers[kind] += 1
        first.setdefault(kind, plan)
    return [
        {
            "kind": kind,
            "layers": count,
            "bytes_per_token": int(count * numbers * width * batch_size),
            "bytes": count * layer_bytes(config, first[kind, numbers], length, batch_size, item_bytes, cache),
        }
        for (kind, numbers), count in layers.items()
    ]


def measure_cache(profile, config, new_tokens=32, seed=0):
    """`measure_caches` of one profile; returns it."""
    return measure_caches([profile], [config], new_tokens, seed)[0]


@torch.no_grad()
def measure_caches(profiles, configs, new_tokens=32, seed=0, tick=lambda name: None):
    """Fill what is measured in profiles, each with a model of random weights; returns the profiles.

    All models are there at once and decode by turns, a few tokens each, so that whatever else the machine does meets all of
    them. Per token the median is taken: of the clock, and of processor time, which other programs disturb less.

    Args:
        tick: called with the name of a profile when its model is built.

    Raises:
        ValueError: for a config whose positions end before `length` + `new_tokens`, fewer than 2 new tokens, or a dtype in
            which no model is run; before any model is built.
    """
    configs = [decoder_of(config) for config in configs]
    for profile, config in zip(profiles, configs, strict=True):
        _check_measurable(profile, config, new_tokens)
    decoders = []
    for profile, config in zip(profiles, configs, strict=True):
        tick(profile.name)
        decoder = _filled(profile, config, new_tokens, seed)
        decoders += [] if decoder is None else [(profile, decoder)]
    for turn in _turns(new_tokens):
        for _, decoder in decoders:
            decoder.decode(turn)
    for profile, decoder in decoders:
        profile.tokens_per_second = 1 / statistics.median(decoder.seconds)
        profile.processor_ms_per_token = 1000 * statistics.median(decoder.processor_seconds)
    return profiles


def _check_measurable(profile, config, new_tokens):
    kind = getattr(torch, profile.dtype)
    if kind not in MEASURED_IN:
        raise ValueError(
            f"{profile.name}: no model runs in dtype={profile.dtype!r}, so it is counted, not measured; choose from "
            f"{[str(each).removeprefix('torch.') for each in MEASURED_IN]}"
        )
    if new_tokens < 2:
        raise ValueError(f"{profile.name}: new_tokens={new_tokens} must be at least 2, for a speed is taken between tokens")
    needed = profile.length + new_tokens
    if config.max_position_embeddings < needed:
        raise ValueError(
            f"{profile.name}: max_position_embeddings={config.max_position_embeddings} is less than the length and the new "
            f"tokens, {profile.length} + {new_tokens}; give a shorter length"
        )


def _turns(new_tokens):
    """Tokens of each turn: a handful of turns, of which the last takes what is left over."""
    share = max(1, new_tokens // 4)
    turns = [share] * (new_tokens // share)
    turns[-1] += new_tokens - sum(turns)
    return turns


def _filled(profile, config, new_tokens, seed):
    """Fill `measured_bytes`; returns the `_Decoder` of one row behind `length` tokens, or None with cross-attention."""
    from ..modeling.modeling_variants import VariantsForCausalLM

    torch.manual_seed(seed)
    model = VariantsForCausalLM(config).to(getattr(torch, profile.dtype)).eval()
    ids = torch.randint(config.vocab_size, (profile.batch_size, profile.length))
    states = {}
    if config.add_cross_attention:
        shape = (profile.batch_size, profile.encoder_length, config.cross_attention_hidden_size)
        states["encoder_hidden_states"] = torch.randn(shape, dtype=model.dtype)

    def fill(ids, room):
        empty = NEW_CACHES[profile.cache](config, profile, room)
        return model(input_ids=ids, past_key_values=empty, use_cache=True, logits_to_keep=1, **states)

    outputs = fill(ids, profile.length)
    profile.measured_bytes = cache_bytes(outputs.past_key_values)
    if states:
        return None
    if profile.batch_size > 1 or profile.cache == "static":
        outputs = fill(ids[:1], profile.length + new_tokens)
    return _Decoder(model, outputs)


class _Decoder:
    """One row that decodes greedily behind its cache, a turn at a time; `seconds` and `processor_seconds` of each token."""

    def __init__(self, model, outputs):
        self.model, self.cache, self.seconds, self.processor_seconds = model, outputs.past_key_values, [], []
        self.token, self.warm = outputs.logits[:, -1:].argmax(-1), False

    def decode(self, tokens):
        for _ in range(tokens):
            clock, processor = time.perf_counter(), time.process_time()
            logits = self.model(input_ids=self.token, past_key_values=self.cache, use_cache=True).logits
            self.token = logits[:, -1:].argmax(-1)
            if self.warm:
                self.seconds.append(time.perf_counter() - clock)
                self.processor_seconds.append(time.process_time() - processor)
            self.warm = True


def _static_cache(config, profile, room):
    cache = StaticCache(config=config, max_cache_len=room)
    if not config.add_cross_attention:
        return cache
    return EncoderDecoderCache(cache, StaticCache(config=config, max_cache_len=profile.encoder_length))


# kind of cache -> an empty one of a config with room for some tokens, None where the model makes its own
NEW_CACHES = {
    "dynamic": lambda config, profile, room: None,
    "static": _static_cache,
    **{kind: (lambda config, profile, room, kind=kind: quantized_cache(kind, config)) for kind in QUANTIZED},
}


def quantized_cache(kind, config):
    """An empty quantized cache of a kind. Raises ValueError where its package, or what that needs, is missing."""
    try:
        cache = QuantizedCache(kind, config)
    except ImportError as error:
        raise ValueError(
            f"cache={kind!r} is counted without, but measured with its package: pip install {_PACKAGES[kind]} "
            f"({' '.join(str(error).split())})"
        ) from None
    if kind == "quanto":
        _compile_quanto()
    return cache


_PACKAGES = {"hqq": "'hf-variants[quantized-cache]'", "quanto": "'hf-variants[quanto-cache]'"}


def _compile_quanto():
    """Have optimum-quanto compile what unpacks its numbers, which else fails in the middle of a text. Raises ValueError."""
    import optimum.quanto  # noqa: F401

    try:
        torch.ops.quanto.unpack(torch.zeros(1, 1, dtype=torch.uint8), 4)
    except Exception as error:
        raise ValueError(
            "cache='quanto' unpacks by a C++ extension that optimum-quanto compiles at first use, which failed: it needs a "
            f"C++ compiler, Python's headers and ninja in PATH ({' '.join(str(error).split())[-300:]}); or use 'hqq' or 'fp8'"
        ) from error


def cache_bytes(cache):
    """Bytes of the tensors that a cache holds, without the spare room of its buffers."""
    if isinstance(cache, EncoderDecoderCache):
        return cache_bytes(cache.self_attention_cache) + cache_bytes(cache.cross_attention_cache)
    layers = [layer for layer in cache.layers if layer.is_initialized]
    return sum(tensor.numel() * tensor.element_size() for layer in layers for tensor in _tensors(layer))


def _tensors(layer):
    # a quantized layer that holds no newer tokens shows its first ones as they were
    yield from (layer.keys, layer.values)
    for packed in (getattr(layer, "_quantized_keys", None), getattr(layer, "_quantized_values", None)):
        yield from _parts(packed)


def _parts(packed):
    """The tensors in which a backend keeps quantized numbers."""
    if packed is None:
        return ()
    if isinstance(packed, torch.Tensor):
        # quanto's tensors are made of others
        inner = packed.__tensor_flatten__()[0] if hasattr(packed, "__tensor_flatten__") else ()
        return [part for name in inner for part in _parts(getattr(packed, name))] or (packed,)
    numbers, beside = packed
    facts = beside.values() if isinstance(beside, dict) else (beside,)
    return (numbers, *(value for value in facts if isinstance(value, torch.Tensor)))


def decoder_of(config):
    """The `VariantsConfig` that decodes: the decoder of an encoder-decoder, the text of a vision-language model, or itself."""
    for part in ("decoder", "text_config"):
        config = config if hasattr(config, "layer_plan") else getattr(config, part, config)
    return config


def _cross_kinds(config, states, width):
    """The entry of what cross-attention keeps, if there is any; `width`: bytes of one number of the whole batch."""
    numbers = [cached_numbers_per_token(config, cross_plan(config, plan)) for plan in config.layer_plan() if plan.cross_width]
    if not numbers:
        return []
    row = {"kind": f"cross, {states:,} states", "layers": len(numbers), "bytes_per_token": sum(numbers) * width}
    return [{**row, "bytes": sum(numbers) * width * states}]


def _kind(plan):
    if plan.window is not None:
        place = f"window {plan.window}"
    elif plan.chunk is not None:
        place = f"chunk {plan.chunk}"
    else:
        place = "full"
    return f"{place}, latent" if plan.attention == "mla" else place
