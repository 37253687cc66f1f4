"""What a measured call computes and reads, by the family's own counters, from the native config of its case.

Notable here: it is the work that the shape asks for (visible pairs, chosen experts, one reading of every weight), not what an
implementation happens to do, so a share of the limit falls where something is computed twice or for nothing.
"""

from hf_variants import VariantsConfig
from hf_variants.analysis import count_parameters, flops_per_token, kv_cache_bytes
from hf_variants.convert import config_from_native


def _ours(config):
    return config if isinstance(config, VariantsConfig) else config_from_native(config)


def training_flops(config, rows, length, passes=3):
    """Matrix FLOPs of forward and backward; `passes` is 4 where the forward runs again in the backward pass."""
    return passes * flops_per_token(_ours(config), length).total * rows * length


def prefill_flops(config, rows, length):
    """Matrix FLOPs of a forward whose head runs on the last token of a row alone."""
    counts = flops_per_token(_ours(config), length)
    head = counts.parts["lm_head"]
    return (counts.total - head) * rows * length + head * rows


def decode_bytes(config, rows, cached, tokens, size=4):
    """Bytes read by `tokens` steps of `rows` rows behind about `cached` tokens: chosen weights once per step, the cache.

    With several rows more experts than one token's are read; that is not counted.
    """
    ours = _ours(config)
    counts = count_parameters(ours)
    # a token reads one row of the table of embeddings; where that is the head too, all of it
    table = 0 if ours.tie_word_embeddings else counts.active_parts.get("embedding", 0)
    return (size * (counts.active - table) + kv_cache_bytes(ours, cached, rows, size)) * tokens
