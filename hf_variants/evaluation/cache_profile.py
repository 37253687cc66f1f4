"""Key-value caches of several configs side by side: counted by layer kind, and measured while a model decodes.

Notable here: weights are random, for bytes and speed do not depend on them; what is measured are the tensors that the cache
holds, so a count that forgets a window or a shared head shows as a difference.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field

import torch

from ..analysis.cache_size import cached_numbers_per_token, cached_tokens, kv_cache_size
from .speed import decoding_speed


@dataclass
class CacheProfile:
    """One config at one length.

    Attributes:
        kinds: list of {"kind", "layers", "bytes_per_token", "bytes"} by layer kind: full, window W, chunk C, MLA.
        bytes: predicted, of the whole batch; `bytes_per_token` while every layer grows, `bytes_per_token_beyond` afterwards.
        share_of_mha: bytes per token as a share of the same heads, each with keys and values of its own.
        measured_bytes: tensors of a cache after `length` tokens; None where not measured.
        tokens_per_second: of one row decoding greedily behind `length` tokens, on this machine.
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
    measured_bytes: int | None = None
    tokens_per_second: float | None = None

    def as_dict(self):
        """Plain data."""
        return asdict(self)


def count_cache(name, config, length, batch_size=1, dtype=torch.bfloat16):
    """`CacheProfile` from the config alone.

    Raises:
        ValueError: for an encoder, which has no cache, or a length or batch below 1.
    """
    if not config.is_causal:
        raise ValueError(f"{name}: is_causal=False has no key-value cache; profile a decoder")
    if length < 1 or batch_size < 1:
        raise ValueError(f"length={length} and batch_size={batch_size} must be at least 1")
    width = dtype.itemsize
    size = kv_cache_size(config, length, batch_size, width)
    heads = config.num_attention_heads * (config.query_head_dim + config.value_head_dim) * config.num_hidden_layers
    layers = Counter(
        (_kind(plan), cached_numbers_per_token(config, plan), cached_tokens(plan, length)) for plan in config.layer_plan()
    )
    kinds = [
        {
            "kind": kind,
            "layers": count,
            "bytes_per_token": count * numbers * width * batch_size,
            "bytes": count * numbers * tokens * width * batch_size,
        }
        for (kind, numbers, tokens), count in layers.items()
    ]
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
        share_of_mha=size.per_token / (heads * width * batch_size),
        kinds=kinds,
    )


@torch.no_grad()
def measure_cache(profile, config, new_tokens=32, repeats=3, seed=0):
    """Fill `measured_bytes` and `tokens_per_second` of a profile with a model of random weights; returns the profile.

    Raises:
        ValueError: for a config whose positions end before `length` + `new_tokens`.
    """
    from ..modeling.modeling_variants import VariantsForCausalLM

    needed = profile.length + new_tokens
    if config.max_position_embeddings < needed:
        raise ValueError(
            f"{profile.name}: max_position_embeddings={config.max_position_embeddings} is less than the length and the new "
            f"tokens, {profile.length} + {new_tokens}; give a shorter length"
        )
    torch.manual_seed(seed)
    model = VariantsForCausalLM(config).to(getattr(torch, profile.dtype)).eval()
    ids = torch.randint(config.vocab_size, (profile.batch_size, profile.length))
    cache = model.base_model(input_ids=ids, use_cache=True).past_key_values
    profile.measured_bytes = cache_bytes(cache)
    del cache
    profile.tokens_per_second = decoding_speed(model, ids[:1], new_tokens, repeats)
    return profile


def cache_bytes(cache):
    """Bytes of the tensors that a cache holds, without the spare room of its buffers."""
    layers = [layer for layer in cache.layers if layer.is_initialized]
    return sum(part.numel() * part.element_size() for layer in layers for part in (layer.keys, layer.values))


def _kind(plan):
    if plan.window is not None:
        place = f"window {plan.window}"
    elif plan.chunk is not None:
        place = f"chunk {plan.chunk}"
    else:
        place = "full"
    return f"{place}, latent" if plan.attention == "mla" else place
