"""What attention keeps for its backward pass, and needs for a moment beside it: grouped or latent, to itself or across.

Notable here: read off what the modules hand to autograd (`attention_scores.py`, `windowed_attention.py`,
`latent_attention.py`, `cross_attention.py`); attention to another stack is the same arithmetic with its
states as keys.
"""

from ..modeling.parallel_plans import splits_attention
from ..modeling.vocabulary import BIASED
from ..modeling.windowed_attention import SMALLEST_BLOCK, pays
from .memory_batch import norm_statistics


def _heads(config, batch):
    """Query and key-value heads on one device."""
    split = batch.tensor_parallel if splits_attention(config) else 1
    return config.num_attention_heads / split, config.num_key_value_heads / split


def _grouped(config, plan, batch, states, across):
    heads, kv_heads = _heads(config, batch)
    tokens, size, width = batch.tokens, batch.product_bytes, config.head_dim
    query, key = heads * width * tokens, kv_heads * width * states.tokens
    kept = _qk_norm(config, plan, batch, states, query, key, heads, kv_heads)
    if config.clip_qkv is not None:
        # behind a norm over all channels, whose gain under autocast makes fp32 of them
        normed = batch.stream_bytes if plan.qk_norm == "full" else size
        kept += (query + key) * normed + key * size
    kernel, copied = _kernel(config, plan, batch, heads, query, key, key, query, across)
    if config.attention_dropout > 0 and not _has_terms(config, across):
        # no fused CPU kernel drops: weights, mask and what it leaves of all pairs are kept, and a key for every query
        repeated = heads * width * states.tokens - key
        kernel += 3 * heads * tokens * states.length * size + 2 * repeated * size - 4 * heads * tokens
        # their product keeps no output, which the next one alone does
        kernel -= query * size if batch.frozen else 0
    contiguous = _norms_copy(config, plan, batch) or _turns_part(config, plan)
    kept += kernel + _output(config, batch, heads, query, copied or contiguous)
    return kept, (2 * query + 4 * key) * size


def _qk_norm(config, plan, batch, states, query, key, heads, kv_heads):
    kind = plan.qk_norm
    if kind == "none":
        return 0
    # a gain of its own for each head multiplies what was normed without one, all of it in fp32
    times = 2 if kind == "per_head" and not batch.frozen else 1
    size = 4 if kind == "per_head" else batch.product_bytes
    if config.qk_norm_after_rope and plan.rope_key is not None:
        size = max(size, batch.stream_bytes)  # turning makes fp32 of them under autocast
    groups = {"head": (heads, kv_heads), "full": (1, 1)}.get(kind, (0, 0))
    stats = sum(norm_statistics(config, side, 1, n) for side, n in zip((batch, states), groups, strict=True))
    return times * (query + key) * size + stats


def _norms_copy(config, plan, batch):
    """Whether the last norm of the heads puts them head by head, so that the output of attention is copied once more."""
    if plan.qk_norm != "head":
        return False
    in_fp32 = batch.product_bytes == 4 or batch.casts and config.qk_norm_after_rope and plan.rope_key is not None
    fused = in_fp32 and config.norm_affine and not config.norm_unit_offset and not config.norm_weight_in_fp32
    return fused or config.norm_type == "layernorm"


def lies_by_heads(config, plan, batch):
    """Whether attention to other states gives an output that is copied before it is projected."""
    return config.attention_type == "mla" or bool(_has_terms(config, True)) or _norms_copy(config, plan, batch)


def _turns_part(config, plan):
    return plan.rope_key is not None and config.rotary_dim_of(plan.rope_key) < config.query_head_dim


def _kernel(config, plan, batch, heads, query, key, value, output, across, padded=False):
    """Bytes that the attention kernel keeps, and whether its output is laid out head by head.

    query, key, value, output: numbers of each on this device. across: whether keys are of another stack.
    padded: values are copied to the width of the keys.
    """
    size, normaliser, length = batch.product_bytes, 4 * heads * batch.tokens, batch.length
    if _has_terms(config, across):
        return (query + key + value + output) * size + normaliser, True
    if batch.masked and not across:
        # which image tokens see each other, row by row, as numbers
        return (query + key + value + output + batch.rows * length * length) * size + normaliser, False
    if plan.window is None and plan.chunk is None:
        return (query + key + value + output) * size + normaliser, False
    if plan.window is not None and config.is_causal and pays(length, plan.window):
        return _windowed(plan, batch, size, normaliser, query, key, value, output, padded), True
    mask = length * length * size if _needs_mask(config, plan, length) else 0
    return (query + key + value + output) * size + normaliser + mask, False


def _has_terms(config, across):
    # states of another stack are at no distance
    biased = config.position_embedding_type in BIASED and not across
    return biased or config.attention_sinks or config.attn_logit_softcapping is not None


def _needs_mask(config, plan, length):
    if plan.chunk is not None:
        return length > plan.chunk
    return length > (plan.window if config.is_causal else plan.window // 2 + 1)


def _windowed(plan, batch, size, normaliser, query, key, value, output, padded_values):
    """Blocks of at least the window: each but the first is kept with the keys and values of the block before.

    The first block is a part of all keys, which stay with it; of values that were padded, its own alone.
    """
    rows = max(plan.window, SMALLEST_BLOCK)
    blocks = -(-batch.length // rows)
    padded, later = blocks * rows / batch.length, (blocks - 1) / blocks
    queries = query * (1 + (later if batch.rows > 1 else 0))
    pairs = key * (1 + 2 * later) + value * (1 + (1 if padded_values else 2) * later)
    masks = 2 * rows * rows + (rows * rows if rows != plan.window else 0)
    return (queries + pairs + output) * padded * size + normaliser * padded + masks * size


def _output(config, batch, heads, output, copied):
    """What the gate and the output projection read, beyond the kernel's own output."""
    size = batch.product_bytes
    gate = {"none": 0, "channel": 2 * output, "head": output + heads * batch.tokens}[config.attn_output_gate]
    kept = gate + (output if copied else 0)
    # a frozen projection does not keep what it reads, and the kernel's own output is counted there
    return (kept - output if batch.frozen and kept else kept) * size


def _latent(config, plan, batch, states, across):
    heads, _ = _heads(config, batch)
    tokens, read, size = batch.tokens, states.tokens, batch.product_bytes
    rank, rope, nope, value = config.kv_lora_rank, config.qk_rope_head_dim, config.qk_nope_head_dim, config.v_head_dim
    query, key = heads * (nope + rope) * tokens, heads * (nope + rope) * read
    expanded, output = heads * (nope + value) * read, heads * value * tokens
    # a latent before its norm and, for the product behind it, after
    both = 1 if batch.frozen else 2
    kept = (both * rank + rope) * read * size + norm_statistics(config, states, 1)
    if config.q_lora_rank is not None:
        kept += both * config.q_lora_rank * tokens * size + norm_statistics(config, batch, 1)
    learned = False
    if plan.qk_norm != "none":
        # queries before their norm, keys expanded for their norm and, where its gain learns, before that multiplies them
        learned = plan.qk_norm == "head" and config.norm_affine and not batch.frozen
        kept += (query + learned * expanded) * size + _key_norm(config, batch, heads, key, expanded, read)
    # a narrower value is padded to the width of the keys; another one stays a part of what was expanded, and keeps that
    fused = not _has_terms(config, across)
    if fused and value > nope + rope:
        # torch's fused CPU kernel does not take values that are wider than keys: the weights of all pairs are kept
        kept += (query + key + output) * size + 4 * heads * tokens * states.length
    else:
        pads = fused and value < nope + rope
        widths = (query, key, key, query) if pads else (query, key, 0 if learned else expanded, output)
        kept += _kernel(config, plan, batch, heads, *widths, across, padded=pads)[0]
    kept += _output(config, batch, heads, output, True)
    return kept, (2 * query + 2 * key + 2 * expanded) * size


def _key_norm(config, batch, heads, key, expanded, read):
    """What the norm of expanded keys keeps: those in fp32, what it puts behind the latents, and keys before it scales them."""
    wide = expanded * 4 if batch.product_bytes == 4 else 4 * (heads * config.qk_nope_head_dim + config.qk_rope_head_dim) * read
    # autocast copies the latents for either expansion, and the turned part makes fp32 of keys
    again = config.kv_lora_rank * read * batch.product_bytes if batch.casts and not batch.frozen else 0
    behind = (config.kv_lora_rank + heads) * read * batch.stream_bytes
    return wide + again + behind + 4 * heads * read + key * batch.stream_bytes


ATTENTION_MEMORY = {"gqa": _grouped, "mla": _latent}


def attention_memory(config, plan, batch, states=None):
    """(bytes kept, bytes needed beside them while it is differentiated) of one attention, without what it reads.

    Args:
        plan: the `LayerPlan` of a layer, or its `cross_plan` where keys are made of another stack's states.
        batch: what asks. states: the `Batch` of the stack that is read; None: the same tokens.
    """
    return ATTENTION_MEMORY[plan.attention](config, plan, batch, batch if states is None else states, states is not None)
