"""What a training step keeps of each layer for its backward pass, and needs for a moment beside it, from the config alone.

    kept        inputs of norms and products, queries, keys, values, the output and normaliser of attention, gate and up
    not kept    anything that is computed again: act(gate), act(gate) * up, scores, logits, rotated or scaled copies
    workspace   gradients and recomputed values that live while one feed-forward or one attention is differentiated

Notable here: each number is read off what the modules hand to autograd (`memory_lean.py`, `blockwise_attention.py`,
`windowed_attention.py`, `experts.py`), and a test compares with the tensors that autograd really holds, toggle by toggle. The
layout is that of torch's CPU kernels; a fused kernel of a GPU keeps the same tensors, but for copies that change a layout.
"""

from dataclasses import dataclass

from ..modeling.layer_plan import cross_plan
from ..modeling.parallel_plans import splits_experts
from ..modeling.vocabulary import LEARNED
from .attention_memory import attention_memory
from .memory_batch import groups_experts, norm_input_bytes, norm_statistics

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
# the same of cross-attention, beside them; in parallel layers its norm reads what theirs read
_CROSS_STREAM = {
    "pre": (1, 0, 1, 1),
    "pre_normed_residual": (1, 0, 1, 1),
    "post": (0, 1, 1, 1),
    "post_ln": (1, 0, 1, 1),
    "sandwich": (1, 1, 2, 1),
    "parallel": (0, 0, 1, 1),
    "parallel_two_norms": (0, 0, 1, 1),
}


@dataclass(frozen=True)
class LayerMemory:
    """Bytes of one layer on one device.

    Attributes:
        kept: by part, until its backward pass: `stream`, `attention`, `mlp`, and `cross_attention` where there is one.
        entry: the layer's input, all that is kept under activation checkpointing.
        workspace: by part, beside what is kept, while `mlp`, `cross_attention` or `attention` is differentiated.
    """

    kept: dict
    entry: float
    workspace: dict

    @property
    def total(self):
        return sum(self.kept.values())


def layer_memory(config, plan, batch, states=None):
    """`LayerMemory` of the layer that `plan` describes; `states`: the `Batch` of the stack that its cross-attention reads."""
    stream = config.hidden_size * batch.tokens * batch.stream_bytes
    attention, attention_work = attention_memory(config, plan, batch)
    mlp, mlp_work = (_sparse if plan.mlp == "sparse" else dense_memory)(config, plan, batch)
    kept = {"stream": _stream(config, plan, batch), "attention": attention, "mlp": mlp}
    # the gradient of the stream waits beside both, and that of the branch is made
    workspace = {"attention": attention_work + 2 * stream, "mlp": mlp_work + 2 * stream}
    if plan.cross_width is not None:
        kept["cross_attention"], across_work = _across(config, plan, batch, states)
        workspace["cross_attention"] = across_work + 2 * stream
    return LayerMemory(kept, stream, workspace)


def _across(config, plan, batch, states):
    """Kept and needed bytes of the cross-attention of a layer and of its norms; the states are kept once for all layers."""
    across = cross_plan(config, plan)
    kept, work = attention_memory(config, across, batch, states)
    inputs, branches, norms, readers = _CROSS_STREAM[plan.topology]
    wide, read = config.hidden_size * batch.tokens, plan.cross_width * states.tokens
    kept += _normed(config, batch, inputs, branches) * wide + norm_statistics(config, batch, norms)
    if batch.casts:
        of_states = 1 if config.attention_type == "mla" else 2
        kept += of_states * read * batch.product_bytes
        readers = _attention_readers(config) - of_states
    kept += readers * wide * batch.product_bytes + _attention_dropped(config) * wide * batch.stream_bytes
    # the gradient of the states is summed over the layers, and that of one product is made beside it
    return kept, work + 2 * read * batch.stream_bytes


def _stream(config, plan, batch):
    """Inputs of the norms, what attention and feed-forward read, masks of dropout."""
    inputs, branches, norms, readers = _STREAM[plan.topology]
    without_first = plan.index == 0 and not config.first_attention_norm
    wide = config.hidden_size * batch.tokens
    kept = _normed(config, batch, inputs - without_first, branches) * wide
    kept += norm_statistics(config, batch, norms - without_first)
    weighed = plan.mlp == "sparse" and config.apply_router_weight_on_input
    if batch.frozen:
        # what a frozen product reads is not kept, but for the gate and up that are made again from it
        readers = int(_recomputes(config, plan))
        # and what the weights of the experts multiply is
        kept += wide * batch.stream_bytes if weighed and (batch.casts or not readers) else 0
    elif batch.casts:
        # each projection casts what it reads for itself; the lean feed-forward and the router do so once each
        readers = _attention_readers(config) + 1
        if plan.mlp == "sparse":
            readers += bool(config.num_shared_experts) + config.shared_expert_gate
            kept += weighed * wide * batch.stream_bytes
    elif plan.mlp == "sparse" and batch.dtype == "bfloat16" and readers > 1 and not (weighed or config.num_shared_experts):
        # the router keeps a copy in fp32, the routed experts the rows that each of them reads
        readers -= 1
    kept += readers * wide * batch.product_bytes
    return kept + ((config.hidden_dropout > 0) + _attention_dropped(config)) * wide * batch.stream_bytes


def _normed(config, batch, inputs, branches):
    """Bytes per channel that norms keep of `inputs` from the stream and of `branches`' outputs."""
    stream, branch = (norm_input_bytes(config, batch, size) for size in (batch.stream_bytes, batch.product_bytes))
    return inputs * stream + branches * branch


def _recomputes(config, plan):
    """Whether a dense network runs that keeps its input to make the rest again: the layer's own, or shared experts."""
    lean = config.mlp_type == "gated" and config.hidden_act != "xielu"
    return lean and (plan.mlp == "dense" or bool(config.num_shared_experts))


def _attention_dropped(config):
    """Whether a mask of dropout is kept behind attention."""
    dropped = config.hidden_dropout if config.attention_output_dropout is None else config.attention_output_dropout
    return dropped > 0


def _attention_readers(config):
    return (2 if config.attention_type == "mla" else 3) + (config.attn_output_gate != "none")


def _activation_tensors(config):
    return _ACTIVATION_TENSORS.get(config.hidden_act, _USUAL_ACTIVATION)


def _not_read(config, batch):
    """1 where what the activation gives is kept by the next product alone, and that is frozen; ReLU keeps it itself."""
    return int(batch.frozen and config.hidden_act != "relu")


def _network(config, width, batch):
    """Kept and needed bytes of a dense network of `width` channels on this device, without its input."""
    inner = width * batch.tokens * batch.product_bytes
    if config.mlp_type == "plain":
        return (_activation_tensors(config) - _not_read(config, batch)) * inner, 2 * inner
    if config.hidden_act == "xielu":  # has weights of its own, so nothing is recomputed
        return (2 + _activation_tensors(config) - 1 + 1 - batch.frozen) * inner, 3 * inner
    # kept: gate and up; needed: act(gate), its product with up, and the gradients of that product, act(gate), gate and up
    return 2 * inner, 6 * inner


def dense_memory(config, plan, batch):
    """(bytes kept, bytes needed for a moment) of the dense feed-forward of a layer, without its input."""
    return _network(config, plan.intermediate_size / batch.tensor_parallel, batch)


def _sparse(config, plan, batch):
    tokens, experts, chosen = batch.tokens, config.num_experts, config.num_experts_per_tok
    grouped = groups_experts(config, batch.weight_bytes)
    size = batch.weight_bytes if grouped else batch.product_bytes
    split = batch.tensor_parallel if splits_experts(config) and batch.expert_parallel == 1 else 1
    pairs = chosen * tokens / batch.expert_parallel
    inner, wide = pairs * plan.intermediate_size / split * size, pairs * config.hidden_size * size
    # scores and weights in fp32 or as autocast makes them, indices of 8 bytes of the choice and of sorting
    router = (2 if batch.casts else 4) * tokens * (experts + 2 * chosen + 1) + 8 * 4 * pairs
    if batch.dtype == "bfloat16":
        # what it reads, and its weight, in fp32
        router += 0 if batch.frozen else 4 * tokens * config.hidden_size
        router += 0 if config.router_weight_in_fp32 else 4 * experts * config.hidden_size
    if config.router_balance == "aux_loss" or config.router_z_loss_coef:
        router += tokens * (4 * experts + 8 * chosen + 4)
    read = 0 if batch.frozen else 1
    if config.mlp_type == "plain":
        kept, work = (_activation_tensors(config) - _not_read(config, batch)) * inner, 2 * inner
    elif config.swiglu_limit is not None:
        kept, work = (6 + read) * inner, 5 * inner
    else:
        kept, work = (2 + max(_activation_tensors(config) - 1, 1) + read) * inner, 4 * inner
    if config.n_group > 1:
        per_group = 17 if config.router_scoring == "sigmoid" else 9
        router += tokens * (8 * config.topk_group + per_group * config.n_group)
    if not grouped:
        # such rows go through the experts one by one, and their weighted outputs are kept as well
        router += 4 * pairs * config.hidden_size
    # what each expert reads, and what its weight multiplies: its output, or the input that the router keeps already
    kept += router + (read if config.apply_router_weight_on_input else 1 + read) * wide
    work += 2 * wide
    if config.num_shared_experts:
        width = config.shared_expert_intermediate_size / batch.tensor_parallel
        shared, shared_work = _network(config, width, batch)
        kept, work = kept + shared, max(work, shared_work)
        if config.shared_expert_gate:
            kept += (config.hidden_size + 1) * tokens * batch.product_bytes
    if config.expert_output_norm:
        kept += config.hidden_size * tokens * batch.stream_bytes + norm_statistics(config, batch, 1)
    return kept, work


def outer_memory(config, batch, headless=False):
    """(bytes kept before the layers, bytes kept after them) until the end of the backward pass.

    headless: whether the states are the end, as of an encoder that a decoder reads.
    """
    tokens, stream, size = batch.tokens, batch.stream_bytes, batch.product_bytes
    before = 8 * tokens
    before += sum(2 * tokens * config.rotary_dim_of(key) * stream for key in config.rope_keys)
    if config.embedding_norm:
        before += config.table_width * tokens * norm_input_bytes(config, batch, stream) + norm_statistics(config, batch, 1)
    if config.embedding_size != config.hidden_size and not batch.frozen:
        before += config.embedding_size * tokens * size
    if config.embedding_dropout > 0:
        before += config.table_width * tokens * stream
    learned = config.position_embedding_type in LEARNED
    if learned or config.type_vocab_size:
        before += 8 * tokens * (learned + (config.type_vocab_size > 0))
    wide = config.hidden_size * tokens
    norm = wide * norm_input_bytes(config, batch, stream) + norm_statistics(config, batch, 1) if config.final_norm else 0
    if headless:
        return before, wide * stream + norm
    # the labels, the input of the last norm, what the head reads
    after = 8 * tokens + wide * size + norm
    if config.lm_head_width != config.hidden_size or config.lm_head_act is not None:
        after -= wide * size if batch.frozen else 0
    if config.lm_head_act is not None:
        inner = _ACTIVATION_TENSORS.get(config.lm_head_act, _USUAL_ACTIVATION)
        after += (inner + 1) * config.lm_head_width * tokens * size + norm_statistics(config, batch, 1)
    elif config.lm_head_width != config.hidden_size:
        after += config.lm_head_width * tokens * size
    return before, after
