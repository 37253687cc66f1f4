"""What a training step keeps of each layer for its backward pass, and needs for a moment beside it, from the config alone.

    kept        inputs of norms and products, queries, keys, values, the output and normaliser of attention, gate and up
    not kept    anything that is computed again: act(gate), act(gate) * up, scores, logits, rotated or scaled copies
    workspace   gradients and recomputed values that live while one feed-forward or one attention is differentiated

Notable here: each number is read off what the modules hand to autograd (`memory_lean.py`, `blockwise_attention.py`,
`windowed_attention.py`, `experts.py`), and a test compares with the tensors that autograd really holds, toggle by toggle. The
layout is that of torch's CPU kernels; a fused kernel of a GPU keeps the same tensors, but for copies that change a layout.
"""

from dataclasses import dataclass

from ..modeling.parallel_plans import splits_attention, splits_experts
from ..modeling.windowed_attention import SMALLEST_BLOCK, pays

# dtype -> bytes of the residual stream, bytes of what enters a product, whether products cast their inputs (autocast)
PRECISIONS = {"float32": (4, 4, False), "bfloat16": (2, 2, False), "mixed": (4, 2, True)}

# Tensors of the inner width that a plain network keeps: before the activation, inside it, after it.
_ACTIVATION_TENSORS = {"relu": 1, "gelu_new": 5, "gelu_fast": 8, "quick_gelu": 3, "xielu": 5.25}
_USUAL_ACTIVATION = 2

# topology -> inputs of norms that are the stream, that are a branch's output, calls of norms, distinct inputs of attention and
# feed-forward; all of hidden size
_STREAM = {
    "pre": (2, 0, 2, 2),
    "pre_normed_residual": (2, 0, 2, 2),
    "post": (0, 2, 2, 2),
    "post_ln": (2, 0, 2, 2),
    "sandwich": (2, 2, 4, 2),
    "parallel": (1, 0, 1, 1),
    "parallel_two_norms": (1, 0, 2, 2),
}


@dataclass(frozen=True)
class Batch:
    """What runs on one device: `rows` x `length` tokens in one of `PRECISIONS`; heads and channels split over
    `tensor_parallel`, experts over `expert_parallel` devices that share a batch."""

    rows: int
    length: int
    dtype: str = "float32"
    tensor_parallel: int = 1
    expert_parallel: int = 1

    @property
    def tokens(self):
        return self.rows * self.length

    @property
    def stream_bytes(self):
        return PRECISIONS[self.dtype][0]

    @property
    def product_bytes(self):
        return PRECISIONS[self.dtype][1]

    @property
    def casts(self):
        return PRECISIONS[self.dtype][2]


@dataclass(frozen=True)
class LayerMemory:
    """Bytes of one layer on one device.

    Attributes:
        kept: by part, until its backward pass: `stream`, `attention`, `mlp`.
        entry: the layer's input, all that is kept under activation checkpointing.
        workspace: by part, beside what is kept, while `mlp` or `attention` is differentiated.
    """

    kept: dict
    entry: float
    workspace: dict

    @property
    def total(self):
        return sum(self.kept.values())


def layer_memory(config, plan, batch):
    """`LayerMemory` of the layer that `plan` describes."""
    stream = config.hidden_size * batch.tokens * batch.stream_bytes
    attention, attention_work = ATTENTION_MEMORY[plan.attention](config, plan, batch)
    mlp, mlp_work = (_sparse if plan.mlp == "sparse" else _dense)(config, plan, batch)
    kept = {"stream": _stream(config, plan, batch), "attention": attention, "mlp": mlp}
    # the gradient of the stream waits beside both, and that of the branch is made
    workspace = {"attention": attention_work + 2 * stream, "mlp": mlp_work + 2 * stream}
    return LayerMemory(kept, stream, workspace)


def _stream(config, plan, batch):
    """Inputs of the norms, what attention and feed-forward read, masks of dropout."""
    inputs, branches, norms, readers = _STREAM[plan.topology]
    without_first = plan.index == 0 and not config.first_attention_norm
    wide = config.hidden_size * batch.tokens
    kept = ((inputs - without_first) * batch.stream_bytes + branches * batch.product_bytes) * wide
    kept += _statistics(config, batch, norms - without_first)
    if batch.casts:
        # each projection casts what it reads for itself; the lean feed-forward and the router do so once each
        readers = _attention_readers(config) + 1 + (plan.mlp == "sparse")
    kept += readers * wide * batch.product_bytes
    dropped = config.hidden_dropout if config.attention_output_dropout is None else config.attention_output_dropout
    return kept + ((config.hidden_dropout > 0) + (dropped > 0)) * wide * batch.stream_bytes


def _attention_readers(config):
    return (2 if config.attention_type == "mla" else 3) + (config.attn_output_gate != "none")


def _statistics(config, batch, norms, groups=1):
    """Mean and deviation that LayerNorm keeps in fp32, `groups` of them per token and norm."""
    return 8 * batch.tokens * norms * groups if config.norm_type == "layernorm" else 0


def _heads(config, batch):
    """Query and key-value heads on one device."""
    split = batch.tensor_parallel if splits_attention(config) else 1
    return config.num_attention_heads / split, config.num_key_value_heads / split


def _grouped(config, plan, batch):
    heads, kv_heads = _heads(config, batch)
    tokens, size, width = batch.tokens, batch.product_bytes, config.head_dim
    query, key = heads * width * tokens, kv_heads * width * tokens
    kept = _qk_norm(config, plan, batch, query, key, heads + kv_heads)
    if config.clip_qkv is not None:
        kept += (query + 2 * key) * size
    kernel, copied = _kernel(config, plan, batch, heads, query, key, key, query)
    if config.attention_dropout > 0 and not _has_terms(config):
        # no fused CPU kernel drops: weights, mask and what it leaves of all pairs are kept, and a key for every query
        kernel += 3 * heads * batch.tokens * batch.length * size + 2 * (query - key) * size - 4 * heads * tokens
    contiguous = _norms_copy(config, plan, batch) or _turns_part(config, plan)
    kept += kernel + _output(config, batch, heads, query, copied or contiguous)
    return kept, (2 * query + 4 * key) * size


def _qk_norm(config, plan, batch, query, key, heads):
    kind = plan.qk_norm
    if kind == "none":
        return 0
    # a gain of its own for each head multiplies what was normed without one
    times = 2 if kind == "per_head" else 1
    groups = heads if kind == "head" else 2
    stats = _statistics(config, batch, 1, groups) if kind in ("head", "full") else 0
    return times * (query + key) * batch.product_bytes + stats


def _norms_copy(config, plan, batch):
    """Whether the last norm of the heads puts them head by head, so that the output of attention is copied once more."""
    if plan.qk_norm != "head":
        return False
    fused = batch.dtype == "float32" and config.norm_affine and not config.norm_unit_offset and not config.norm_weight_in_fp32
    return fused or config.norm_type == "layernorm"


def _turns_part(config, plan):
    return plan.rope_key is not None and config.rotary_dim_of(plan.rope_key) < config.query_head_dim


def _kernel(config, plan, batch, heads, query, key, value, output, padded=False):
    """Bytes that the attention kernel keeps, and whether its output is laid out head by head.

    query, key, value, output: numbers of each on this device. padded: values are copied to the width of the keys.
    """
    size, normaliser, length = batch.product_bytes, 4 * heads * batch.tokens, batch.length
    if _has_terms(config):
        return (query + key + value + output) * size + normaliser, True
    if plan.window is None and plan.chunk is None:
        return (query + key + value + output) * size + normaliser, False
    if plan.window is not None and config.is_causal and pays(length, plan.window):
        return _windowed(plan, batch, size, normaliser, query, key, value, output, padded), True
    mask = length * length * size if _needs_mask(config, plan, length) else 0
    return (query + key + value + output) * size + normaliser + mask, False


def _has_terms(config):
    biased = config.position_embedding_type in ("alibi", "relative")
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
    copy = output * size if copied else 0
    if config.attn_output_gate == "channel":
        return copy + 2 * output * size
    if config.attn_output_gate == "head":
        return copy + (output + heads * batch.tokens) * size
    return copy


def _latent(config, plan, batch):
    heads, _ = _heads(config, batch)
    tokens, size = batch.tokens, batch.product_bytes
    rank, rope, nope, value = config.kv_lora_rank, config.qk_rope_head_dim, config.qk_nope_head_dim, config.v_head_dim
    query = heads * (nope + rope) * tokens
    expanded, output = heads * (nope + value) * tokens, heads * value * tokens
    kept = (2 * rank + rope) * tokens * size + _statistics(config, batch, 1)
    if config.q_lora_rank is not None:
        kept += 2 * config.q_lora_rank * tokens * size + _statistics(config, batch, 1)
    weighs = False
    if plan.qk_norm != "none":
        # queries before their norm, keys expanded for their norm and before it multiplies them
        weighs = plan.qk_norm == "head" and config.norm_affine
        kept += (query + expanded * (1 + weighs) + query + (rank + 2 * heads) * tokens) * size
    # a narrower value is padded to the width of the keys; another one stays a part of what was expanded
    fused = not _has_terms(config)
    if fused and value > nope + rope:
        # torch's fused CPU kernel does not take values that are wider than keys: the weights of all pairs are kept
        kept += (2 * query + output) * size + 4 * heads * tokens * batch.length
    else:
        pads = fused and value < nope + rope
        widths = (query, query, query, query) if pads else (query, query, 0 if weighs else expanded, output)
        kept += _kernel(config, plan, batch, heads, *widths, padded=pads)[0]
    kept += _output(config, batch, heads, output, True)
    return kept, (4 * query + 2 * expanded) * size


ATTENTION_MEMORY = {"gqa": _grouped, "mla": _latent}


def _activation_tensors(config):
    return _ACTIVATION_TENSORS.get(config.hidden_act, _USUAL_ACTIVATION)


def _network(config, width, batch):
    """Kept and needed bytes of a dense network of `width` channels on this device, without its input."""
    inner = width * batch.tokens * batch.product_bytes
    if config.mlp_type == "plain":
        return _activation_tensors(config) * inner, 2 * inner
    if config.hidden_act == "xielu":  # has weights of its own, so nothing is recomputed
        return (2 + _activation_tensors(config) - 1 + 1) * inner, 3 * inner
    # kept: gate and up; needed: act(gate), its product with up, and the gradients of that product, act(gate), gate and up
    return 2 * inner, 6 * inner


def _dense(config, plan, batch):
    return _network(config, plan.intermediate_size / batch.tensor_parallel, batch)


def _sparse(config, plan, batch):
    tokens, size, experts, chosen = batch.tokens, batch.product_bytes, config.num_experts, config.num_experts_per_tok
    split = batch.tensor_parallel if splits_experts(config) and batch.expert_parallel == 1 else 1
    pairs = chosen * tokens / batch.expert_parallel
    inner, wide = pairs * plan.intermediate_size / split * size, pairs * config.hidden_size * size
    # scores in fp32, indices of 8 bytes of the choice and of sorting, weights
    router = 4 * tokens * (experts + 2 * chosen + 1) + 8 * 4 * pairs
    if batch.dtype == "bfloat16":
        router += 4 * tokens * config.hidden_size
    if config.router_balance == "aux_loss" or config.router_z_loss_coef:
        router += tokens * (4 * experts + 8 * chosen + 4)
    if config.mlp_type == "plain":
        kept, work = _activation_tensors(config) * inner, 2 * inner
    elif config.swiglu_limit is not None:
        kept, work = 7 * inner, 5 * inner
    else:
        kept, work = (2 + max(_activation_tensors(config) - 1, 1) + 1) * inner, 4 * inner
    if config.n_group > 1:
        per_group = 17 if config.router_scoring == "sigmoid" else 9
        router += tokens * (8 * config.topk_group + per_group * config.n_group)
    if config.hidden_size * size % 16 or plan.intermediate_size * size % 16:
        # such rows go through the experts one by one, and their weighted outputs are kept as well
        router += 4 * pairs * config.hidden_size
    # what each expert reads, and what its weight multiplies: its output, or the input that the router keeps already
    kept += router + (1 if config.apply_router_weight_on_input else 2) * wide
    work += 2 * wide
    if config.num_shared_experts:
        width = config.shared_expert_intermediate_size / batch.tensor_parallel
        shared, shared_work = _network(config, width, batch)
        kept, work = kept + shared, max(work, shared_work)
        if config.shared_expert_gate:
            kept += (config.hidden_size + 1) * tokens * size
    if config.expert_output_norm:
        kept += config.hidden_size * tokens * batch.stream_bytes + _statistics(config, batch, 1)
    return kept, work


def outer_memory(config, batch):
    """(bytes kept before the layers, bytes kept after them) until the end of the backward pass."""
    tokens, stream, size = batch.tokens, batch.stream_bytes, batch.product_bytes
    before = 8 * tokens
    before += sum(2 * tokens * config.rotary_dim_of(key) * stream for key in config.rope_keys)
    if config.embedding_norm:
        before += config.table_width * tokens * stream + _statistics(config, batch, 1)
    if config.embedding_size != config.hidden_size:
        before += config.embedding_size * tokens * size
    if config.embedding_dropout > 0:
        before += config.table_width * tokens * stream
    if config.position_embedding_type == "learned" or config.type_vocab_size:
        before += 8 * tokens * ((config.position_embedding_type == "learned") + (config.type_vocab_size > 0))
    wide = config.hidden_size * tokens
    # the labels, the input of the last norm, what the head reads
    after = 8 * tokens + wide * size
    if config.final_norm:
        after += wide * stream + _statistics(config, batch, 1)
    if config.lm_head_act is not None:
        inner = _ACTIVATION_TENSORS.get(config.lm_head_act, _USUAL_ACTIVATION)
        after += (inner + 1) * config.lm_head_width * tokens * size + _statistics(config, batch, 1)
    elif config.lm_head_width != config.hidden_size:
        after += config.lm_head_width * tokens * size
    return before, after
