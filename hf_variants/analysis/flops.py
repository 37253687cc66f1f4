"""Forward FLOPs of a config, per token and by part, without building a model.

Notable here: a multiply-add is two operations; only matrix products are counted (no norms, softmax, activations); an
embedding lookup is no product; the attention term counts the pairs a query can see, so windows and chunks show.
"""

from dataclasses import dataclass, field

from .counts import Size, distinct_layers, embedding_projection_size, layer_sizes, lm_head_size, transform_size


@dataclass(frozen=True)
class FlopCounts:
    """Forward FLOPs of one token.

    Attributes:
        total: sum of `parts`.
        parts: by part; `attention_scores` is what grows with the length, `attention` the projections.
        length: tokens of the sequence.
        mode: `prefill` (mean over the tokens of one full forward) or `decode` (the last token against a cache).
    """

    total: float
    length: int
    mode: str
    parts: dict = field(default_factory=dict)


def _triangle(n):
    return n * (n + 1) // 2


def visible_pairs(plan, length, is_causal=True):
    """Number of (query, key) pairs that a layer's mask lets through in one sequence of `length` tokens."""
    if plan.chunk is not None:
        whole, rest = divmod(length, plan.chunk)
        area = _triangle if is_causal else (lambda n: n * n)
        return whole * area(plan.chunk) + area(rest)
    if plan.window is None:
        return _triangle(length) if is_causal else length * length
    if is_causal:
        window = min(plan.window, length)
        return _triangle(window) + (length - window) * window
    half = min(plan.window // 2, length - 1)
    return length + 2 * (half * length - _triangle(half))


def visible_keys_of_last(plan, length, is_causal=True):
    """Number of keys that the last token of a sequence sees, itself included."""
    if plan.chunk is not None:
        return (length - 1) % plan.chunk + 1
    if plan.window is None:
        return length
    return min(plan.window if is_causal else plan.window // 2 + 1, length)


def score_flops_per_pair(config, absorbed=False):
    """Operations of one (query, key) pair in one layer, all heads: the score and the weighted sum of values.

    `absorbed`: MLA compares and sums in the latent space, as it does when decoding from its cache.
    """
    key, value = config.query_head_dim, config.value_head_dim
    if absorbed and config.attention_type == "mla":
        key, value = config.kv_lora_rank + config.qk_rope_head_dim, config.kv_lora_rank
    return 2 * config.num_attention_heads * (key + value)


def flops_per_token(config, length=None, mode="prefill"):
    """Forward FLOPs of one token in a sequence of `length` tokens (None: `max_position_embeddings`), as `FlopCounts`.

    The backward pass costs twice as much again. The usual 2 * (active parameters) leaves out the attention term and
    counts the embedding lookup as a product.

    Raises:
        ValueError: for a length below 1 or an unknown mode.
    """
    length = config.max_position_embeddings if length is None else length
    if length < 1:
        raise ValueError(f"length={length} must be at least 1 token")
    if mode not in ("prefill", "decode"):
        raise ValueError(f"mode={mode!r} is unknown; choose from ['prefill', 'decode']")
    parts = {"attention_scores": 0.0}
    per_pair = score_flops_per_pair(config, absorbed=mode == "decode")
    for plan, times in distinct_layers(config):
        if mode == "prefill":
            pairs = visible_pairs(plan, length, config.is_causal) / length
        else:
            pairs = visible_keys_of_last(plan, length, config.is_causal)
        parts["attention_scores"] += per_pair * pairs * times
        for part, size in layer_sizes(config, plan, config.num_experts_per_tok).items():
            parts[part] = parts.get(part, 0) + _products(size) * times
        parts["attention"] += _key_norm_products(config, plan) * times
    parts["embedding_projection"] = _products(embedding_projection_size(config))
    parts["head_transform"] = _products(transform_size(config))
    parts["lm_head"] = _products(lm_head_size(config))
    parts = {part: flops for part, flops in parts.items() if flops}
    return FlopCounts(sum(parts.values()), length, mode, parts)


def _key_norm_products(config, plan):
    """MLA with a QK-norm expands each new key once to learn its norm, which is then cached."""
    if config.attention_type != "mla" or plan.qk_norm == "none":
        return 0
    return 2 * config.kv_lora_rank * config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim)


def _products(size: Size):
    return 2 * size.matrix
