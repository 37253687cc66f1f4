"""Bytes of the key-value cache of a config, per token and for a length, without building a model.

Notable here: sliding and chunked layers stop growing; MLA stores one latent and one rotary key per token for all
heads (and, with a QK-norm, the norm of every head's key); RoPE rules that follow the length of a row keep a record of
it; the tests compare with the tensors a model really caches.
"""

from dataclasses import dataclass

from hf_variants.modeling.layer_plan import cross_plan

from .counts import check_row


@dataclass(frozen=True)
class CacheSize:
    """Cache of one batch.

    Attributes:
        bytes: at `length` tokens, what cross-attention keeps of `encoder_length` states included.
        per_token: what one more token adds while every layer still grows (the usual figure).
        per_token_beyond: what one more token adds once every window and chunk is full.
        length, batch_size, dtype_bytes, encoder_length: what was counted.
    """

    bytes: int
    per_token: int
    per_token_beyond: int
    length: int
    batch_size: int
    dtype_bytes: float
    encoder_length: int = 0


def key_and_value_numbers(config, plan):
    """Numbers that one layer stores for one token as keys and as values: of MLA, the latent and the rotary key."""
    if config.attention_type == "mla":
        # Scores from the latent need each head's key norm, which only the expanded key could give.
        norms = 0 if plan.qk_norm == "none" else config.num_attention_heads
        return config.kv_lora_rank + norms, config.qk_rope_head_dim
    return (config.num_key_value_heads * config.head_dim,) * 2


def cached_numbers_per_token(config, plan):
    """Numbers that one layer stores for one token, or of cross-attention (whose plan is given then) for one state."""
    return sum(key_and_value_numbers(config, plan))


def cached_tokens(plan, length):
    """Tokens that one layer keeps after `length` of them: a window of W needs W - 1 for the next query."""
    limit = plan.window if plan.chunk is None else plan.chunk
    return length if limit is None else min(length, limit - 1)


CACHES = {
    "dynamic": "grows with the row; a window of W keeps W - 1 tokens",
    "static": "holds room for `length` tokens from the start, of a window or chunk for as many as it has",
    "fp8": "transformers' quantized cache with 8-bit floats: one byte a number, two fp32 scales a layer; full attention only",
    "hqq": "the same with 4-bit integers of hqq, in groups of 64 numbers with a scale and a zero each",
    "quanto": "the same of optimum-quanto, whose groups are neighbours within a row; compiles a C++ extension at first use",
}
# of keys and of values, in each layer
SCALE_BYTES = 8
GROUPED = ("hqq", "quanto")
# transformers' defaults: bits of a number, numbers of a group; newer tokens wait in the model's dtype
BITS, GROUP_SIZE, RESIDUAL_LENGTH = 4, 64, 128
QUANTIZED = ("fp8", *GROUPED)


def check_cache(config, cache):
    """Raise ValueError for a kind of cache that is not counted, or that a config cannot have."""
    if cache not in CACHES:
        raise ValueError(f"cache={cache!r} is unknown; choose from {list(CACHES)}")
    kinds = {plan.layer_type for plan in config.layer_plan()}
    if cache in QUANTIZED and kinds != {"full_attention"}:
        raise ValueError(
            f"cache={cache!r} takes full attention alone, but layer_types has {sorted(kinds - {'full_attention'})}"
        )
    if cache in GROUPED:
        _check_groups(config, cache)
    if cache == "static" and "full_attention" not in kinds and record_bytes_per_token(config, 2):
        raise ValueError(
            "cache='static' of sliding layers alone cannot record what the rope types 'dynamic' and 'longrope' need; use "
            "cache='dynamic'"
        )


def _check_groups(config, cache):
    """Raise ValueError where the numbers of a token are no whole groups, so that some lengths could not be packed."""
    for plan in config.layer_plan():
        for what, numbers in zip(("keys", "values"), key_and_value_numbers(config, plan), strict=True):
            if numbers % GROUP_SIZE:
                raise ValueError(
                    f"cache={cache!r} packs groups of {GROUP_SIZE} numbers, but the {what} of a token are {numbers} in layer "
                    f"{plan.index}; use 'fp8', which takes any width"
                )


def layer_bytes(config, plan, length, batch_size, dtype_bytes, cache="dynamic"):
    """Bytes of the self-attention of one layer after one call of `length` tokens."""
    if cache in GROUPED:
        return _packed_bytes(config, plan, batch_size * length, dtype_bytes, cache)
    numbers = cached_numbers_per_token(config, plan) * batch_size * tokens_held(plan, length, cache)
    return numbers + SCALE_BYTES if cache == "fp8" else numbers * dtype_bytes


def _packed_bytes(config, plan, tokens, dtype_bytes, cache):
    """Packed integers, and two numbers for each group, of `tokens` tokens of all rows."""
    groups = [numbers * tokens // GROUP_SIZE for numbers in key_and_value_numbers(config, plan)]
    packed = scales = sum(groups)
    if cache == "quanto":
        # two groups share their bytes, of which an odd one has both halves; a single group has a scale for each number
        packed += sum(count % 2 for count in groups)
        scales += sum(GROUP_SIZE - 1 for count in groups if count == 1)
    return packed * GROUP_SIZE * BITS // 8 + scales * 2 * dtype_bytes


def tokens_held(plan, length, cache="dynamic"):
    """Tokens that one layer has room for after `length` of them in a kind of cache."""
    if cache != "static":
        return cached_tokens(plan, length)
    limit = plan.window if plan.chunk is None else plan.chunk
    return length if limit is None else min(length, limit)


def record_bytes_per_token(config, dtype_bytes):
    """Bytes of the one record per token, shared by all layers, that the RoPE rules which follow a row's length need.

    Document, position, visibility and rope length in fp32; beside them one more number, or under LongRoPE the token's
    embedding, from which the cache is rebuilt when a row crosses the original length.
    """
    rules = {config.rope_of(key)["rope_type"] for key in config.rope_keys}
    if "longrope" in rules:
        return 4 * 4 + config.embedding_size * dtype_bytes
    return 5 * 4 if "dynamic" in rules else 0


def cross_numbers_per_state(config):
    """Numbers that all layers together store for one state of another stack that they attend to."""
    plans = [cross_plan(config, plan) for plan in config.layer_plan() if plan.cross_width is not None]
    return sum(cached_numbers_per_token(config, plan) for plan in plans)


def kv_cache_size(config, length=None, batch_size=1, dtype_bytes=2, encoder_length=None, cache="dynamic"):
    """Cache of `batch_size` rows of `length` tokens (None: `max_position_embeddings`), as `CacheSize`.

    A packed cache is what one call of all tokens leaves; tokens that come one by one wait in the dtype of the model, up to
    `RESIDUAL_LENGTH` of them, and `per_token` is what one adds once they are packed.

    `dtype_bytes` is 2 for bf16 and fp16, 4 for fp32, 1 for fp8. An encoder (`is_causal=False`) has none; an
    encoder-decoder has its decoder's. With cross-attention,
    `encoder_length` states (None: as many as tokens) are kept too, which does not grow with the tokens. `cache` is a key of
    `CACHES`; the bytes of one more token say nothing of a static one, which has them already.

    Raises:
        ValueError: for a negative length or one beyond a learned table of positions, a batch or dtype size that is not above
            zero, or a cache that `check_cache` refuses.
    """
    check_cache(config.stacks[-1], cache)
    config = config.stacks[-1]
    length = config.max_position_embeddings if length is None else length
    states = (length if encoder_length is None else encoder_length) if config.add_cross_attention else 0
    for name, value, least in (("length", length, 0), ("batch_size", batch_size, 1), ("encoder_length", states, 0)):
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    check_row(config, length)
    if dtype_bytes <= 0:
        raise ValueError(f"dtype_bytes={dtype_bytes} must be greater than zero; 2 for bf16, 4 for fp32")
    plans = config.layer_plan() if config.is_causal else ()
    # the record of a RoPE rule and its embeddings keep their own precision
    width = number_bytes(cache, dtype_bytes)
    units = [cached_numbers_per_token(config, plan) * batch_size * width for plan in plans]
    record = record_bytes_per_token(config, dtype_bytes) * batch_size if plans else 0
    across = cross_numbers_per_state(config) * batch_size * dtype_bytes * states if plans else 0
    kept = sum(layer_bytes(config, plan, length, batch_size, dtype_bytes, cache) for plan in plans)
    growing = sum(unit for unit, plan in zip(units, plans, strict=True) if plan.window is None and plan.chunk is None)
    return CacheSize(
        bytes=int(kept + across + record * length),
        per_token=int(sum(units) + record),
        per_token_beyond=int(growing + record),
        length=length,
        batch_size=batch_size,
        dtype_bytes=dtype_bytes,
        encoder_length=states,
    )


def number_bytes(cache, dtype_bytes):
    """Bytes of one number in a kind of cache, its share of the scales of its group included."""
    if cache in GROUPED:
        return BITS / 8 + 2 * dtype_bytes / GROUP_SIZE
    return 1 if cache == "fp8" else dtype_bytes


def kv_cache_bytes(config, length=None, batch_size=1, dtype_bytes=2, encoder_length=None):
    """Bytes of the cache alone; see `kv_cache_size`."""
    return kv_cache_size(config, length, batch_size, dtype_bytes, encoder_length).bytes
