"""Forward FLOPs of a config, per token and by part, without building a model.

Notable here: a multiply-add is two operations; only matrix products are counted (no norms, softmax, activations); an
embedding lookup is no product; the attention term counts the pairs a query can see, so windows and chunks show, or every pair
that a kernel without windows computes. `count.py` adds the backward pass.
"""

from dataclasses import dataclass, field

from hf_variants.modeling.layer_plan import cross_plan

from .cache_size import cached_tokens
from .counts import (
    Size,
    check_row,
    distinct_layers,
    embedding_projection_size,
    latent_expansion_size,
    layer_sizes,
    lm_head_size,
    read_states_size,
    transform_size,
)

MODES = ("prefill", "decode")
PAIRS = {
    "visible": "the pairs that the mask lets through: what a kernel must compute",
    "all": "every pair of a query and a key that the layer is given: what `eager` computes, masked or not",
}
LATENT_FORMS = {
    "expanded": "keys and values of every head are made from the latents: training, and prompts",
    "absorbed": "scores and sums are taken on the latents themselves: decoding",
}


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


def flops_per_token(config, length=None, mode="prefill", pairs="visible", latent=None, encoder_length=None):
    """Forward FLOPs of one token in a sequence of `length` tokens (None: `max_position_embeddings`), as `FlopCounts`.

    With cross-attention `encoder_length` states of another stack are attended to (None: as many as tokens); their keys and
    values are made once, so a prefill shares their cost among its tokens and decoding has none of it.

    The backward pass costs twice as much again. The usual 2 * (active parameters) leaves out the attention term and
    counts the embedding lookup as a product.

    Of an encoder-decoder, a prefill has the encoder's states shared among the tokens too, and decoding has none of them.

    Args:
        mode: `prefill`, the mean over the tokens of one full forward; `decode`, the last token against a cache.
        pairs: a key of `PAIRS`.
        latent: a key of `LATENT_FORMS`, for MLA alone; None is what the models do: expanded in prefill, absorbed in decode.

    Raises:
        ValueError: for a length below 1 or beyond a learned table of positions, or an unknown mode, `pairs` or `latent`.
    """
    length = config.max_position_embeddings if length is None else length
    if length < 1:
        raise ValueError(f"length={length} must be at least 1 token")
    for name, value, known in (("mode", mode, MODES), ("pairs", pairs, PAIRS), ("latent", latent, (None, *LATENT_FORMS))):
        if value not in known:
            raise ValueError(f"{name}={value!r} is unknown; choose from {list(known)}")
    check_row(config.stacks[-1], length)
    absorbed = mode == "decode" if latent is None else latent == "absorbed"
    states = length if encoder_length is None else encoder_length
    if len(config.stacks) > 1:
        return _flops_of_pair(config, length, mode, pairs, latent, states)
    parts = {"attention_scores": 0.0}
    per_pair = score_flops_per_pair(config, absorbed)
    for plan, times in distinct_layers(config):
        keys = keys_per_query(plan, length, mode, pairs, config.is_causal)
        parts["attention_scores"] += per_pair * keys * times
        for part, size in layer_sizes(config, plan, config.num_experts_per_tok).items():
            parts[part] = parts.get(part, 0) + _products(size) * times
        parts["attention"] += _key_norm_products(config, plan) * times
        if mode == "decode" and not absorbed and config.attention_type == "mla":
            # every cached latent is expanded again; the newest is among the projections
            parts["attention"] += _expansion_products(config) * (keys - 1) * times
        if plan.cross_width is not None:
            parts["cross_attention"] += reading_flops(config, plan, states, length, mode, absorbed) * times
            parts["attention_scores"] += per_pair * states * times
    parts["embedding_projection"] = _products(embedding_projection_size(config))
    parts["head_transform"] = _products(transform_size(config))
    parts["lm_head"] = _products(lm_head_size(config))
    parts = {part: flops for part, flops in parts.items() if flops}
    return FlopCounts(sum(parts.values()), length, mode, parts)


def _flops_of_pair(config, length, mode, pairs, latent, states):
    decoder = flops_per_token(config.decoder, length, mode, pairs, latent, states)
    parts = {f"decoder_{part}": flops for part, flops in decoder.parts.items()}
    check_row(config.encoder, states, "encoder_length")
    if mode == "prefill" and states:
        encoder = flops_per_token(config.encoder, states, mode, pairs, latent).parts
        kept = {part: flops for part, flops in encoder.items() if part not in ("lm_head", "head_transform")}
        parts = {**{f"encoder_{part}": flops * states / length for part, flops in kept.items()}, **parts}
    return FlopCounts(sum(parts.values()), length, mode, parts)


def keys_per_query(plan, length, mode="prefill", pairs="visible", is_causal=True):
    """Keys that one query of a layer meets: in prefill the mean over `length` tokens, in decode those of the last token."""
    if mode == "prefill":
        return visible_pairs(plan, length, is_causal) / length if pairs == "visible" else length
    if pairs == "visible":
        return visible_keys_of_last(plan, length, is_causal)
    return cached_tokens(plan, length - 1) + 1


def _expansion_products(config):
    """MLA's product of one latent with the matrix that gives the keys and values of all heads."""
    return _products(latent_expansion_size(config))


def reading_flops(config, plan, states, length, mode, absorbed):
    """What one token pays for the keys and values of the states, beyond `layer_sizes`, which counts as if it read one itself.

    Keys and values (latents) are made once, so decoding has no part in that; latents that are not absorbed are expanded anew.
    """
    read, expand = _products(read_states_size(config, plan)), _expansion_products(config)
    times = states / length if mode == "prefill" else 0
    norms = _key_norm_products(config, cross_plan(config, plan)) * times
    expanded = 0 if absorbed else expand * ((states if mode == "decode" else times) - 1)
    return read * (times - 1) + norms + expanded


def _key_norm_products(config, plan):
    """MLA with a QK-norm expands each new key once to learn its norm, which is then cached."""
    return 0 if config.attention_type != "mla" or plan.qk_norm == "none" else _expansion_products(config)


def _products(size: Size):
    return 2 * size.matrix
