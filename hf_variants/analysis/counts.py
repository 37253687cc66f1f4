"""Parameters of a config, by part, total and active, without building a model.

Notable here: one small record, `Size`, separates what meets a token in a matrix product from what is added, scaled or
looked up, so that FLOPs follow from the same count; tied weights are counted once; the selection bias of the router is
a buffer and not a parameter.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from hf_variants.modeling.layer_plan import cross_plan, mlp_biases
from hf_variants.modeling.vocabulary import LEARNED, RELATIVE


@dataclass(frozen=True)
class Size:
    """Parameters of one part: `matrix` of them meet a token in a matrix product, `vector` of them do not."""

    matrix: int = 0
    vector: int = 0

    def __add__(self, other):
        return Size(self.matrix + other.matrix, self.vector + other.vector)

    def __mul__(self, times):
        return Size(self.matrix * times, self.vector * times)

    @property
    def total(self):
        return self.matrix + self.vector


@dataclass(frozen=True)
class ParameterCounts:
    """Unique parameters of a config.

    Attributes:
        total: all of them; equals `sum(p.numel() for p in model.parameters())` of the language model of the config:
            `VariantsForCausalLM`, or `VariantsForMaskedLM` where `is_causal=False` (`head_sizes.py` has the other heads).
        active: those that one token meets: the dense part, `num_experts_per_tok` routed experts and the shared ones.
        parts: total by part, in the order of the forward pass. A tied head has no entry of its own.
        active_parts: the same for the active ones.
        buffers: trained values that are no parameters (the selection bias of `router_balance="bias"`).
    """

    total: int
    active: int
    parts: dict = field(default_factory=dict)
    active_parts: dict = field(default_factory=dict)
    buffers: int = 0

    @property
    def non_embedding(self):
        """Total without the tables of tokens, positions and types (and so without a tied head)."""
        tables = ("embedding", "positions", "token_types")
        return self.total - sum(
            size for part, size in self.parts.items() if part in tables or part.split("_", 1)[-1] in tables
        )


def linear_size(inputs, outputs, bias=False):
    """A projection of `inputs` to `outputs` channels."""
    return Size(inputs * outputs, outputs if bias else 0)


def norm_size(config, width):
    """One norm over `width` channels."""
    return Size(0, width * (int(config.norm_affine) + int(config.norm_bias)))


def qk_norm_size(config, kind):
    """The query and key norms of one layer whose `qk_norm` is `kind`."""
    if kind == "head" and config.attention_type == "mla":
        return Size(0, 2 * config.query_head_dim * int(config.norm_affine))
    if kind == "head":
        return norm_size(config, config.head_dim) * 2
    if kind == "per_head":
        return Size(0, (config.num_attention_heads + config.num_key_value_heads) * config.head_dim)
    if kind == "full":
        heads = config.num_attention_heads + config.num_key_value_heads
        return norm_size(config, heads * config.head_dim)
    return Size()


def grouped_attention_size(config, kv_from):
    """Projections of MHA, GQA or MQA whose keys and values are made of `kv_from` channels."""
    hidden, bias = config.hidden_size, config.attention_bias
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    projections = linear_size(hidden, queries, bias) + linear_size(kv_from, keys, bias) * 2
    return projections + linear_size(queries, hidden, config.attention_out_bias)


def latent_attention_size(config, kv_from):
    """Projections and latent norms of MLA (DeepSeek-V2 2024, arXiv:2405.04434 §2.1), latents made of `kv_from` channels."""
    hidden, heads, bias = config.hidden_size, config.num_attention_heads, config.attention_bias
    queries = heads * config.query_head_dim
    if config.q_lora_rank is None:
        size = linear_size(hidden, queries)
    else:
        size = linear_size(hidden, config.q_lora_rank, bias) + norm_size(config, config.q_lora_rank)
        size += linear_size(config.q_lora_rank, queries)
    size += linear_size(kv_from, config.kv_lora_rank + config.qk_rope_head_dim, bias)
    size += norm_size(config, config.kv_lora_rank)
    size += latent_expansion_size(config)
    return size + linear_size(heads * config.v_head_dim, hidden, config.attention_out_bias)


ATTENTION_SIZES = {"gqa": grouped_attention_size, "mla": latent_attention_size}


def output_gate_size(config):
    """The projection of the gate on the output."""
    outputs = {"none": 0, "head": 1, "channel": config.value_head_dim}[config.attn_output_gate]
    return linear_size(config.hidden_size, config.num_attention_heads * outputs)


def attention_size(config, plan, kv_from=None):
    """Attention of one layer: projections, query and key norms, sinks, the gate on its output.

    kv_from: width of what keys and values are made of; None gives hidden_size.
    """
    kv_from = config.hidden_size if kv_from is None else kv_from
    sinks = Size(0, config.num_attention_heads if config.attention_sinks else 0)
    extras = qk_norm_size(config, plan.qk_norm) + sinks + output_gate_size(config)
    return ATTENTION_SIZES[config.attention_type](config, kv_from) + extras


def mlp_size(config, width, bias=None):
    """One feed-forward network of `width` channels; also one expert. `bias` as in `layer_plan.mlp_biases`."""
    bias, out_bias = mlp_biases(config, bias)
    up = linear_size(config.hidden_size, width, bias) * (2 if config.mlp_type == "gated" else 1)
    return up + linear_size(width, config.hidden_size, out_bias)


def router_size(config):
    """The gate of the routed experts."""
    return linear_size(config.hidden_size, config.num_experts, config.router_bias)


def shared_experts_size(config):
    """The always-on experts, which are built as one network, and their gate."""
    if not config.num_shared_experts:
        return Size()
    gate = Size(config.hidden_size if config.shared_expert_gate else 0)
    return mlp_size(config, config.shared_expert_intermediate_size) + gate


def latent_expansion_size(config):
    """The projection from a latent to the keys and values of all heads; nothing without MLA."""
    if config.attention_type != "mla":
        return Size()
    return linear_size(config.kv_lora_rank, config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim))


def read_states_size(config, plan):
    """The projections of one layer that meet the states of another stack: of keys and values, or of latents."""
    if config.attention_type == "mla":
        return linear_size(plan.cross_width, config.kv_lora_rank + config.qk_rope_head_dim)
    return linear_size(plan.cross_width, config.num_key_value_heads * config.head_dim) * 2


def cross_attention_size(config, plan):
    """Attention of one layer to the states of another stack."""
    return Size() if plan.cross_width is None else attention_size(config, cross_plan(config, plan), plan.cross_width)


# Norms of the residual stream in one layer, without those of cross-attention.
NORMS_PER_LAYER = {
    "pre": 2,
    "pre_normed_residual": 2,
    "post": 2,
    "post_ln": 2,
    "sandwich": 4,
    "parallel": 1,
    "parallel_two_norms": 2,
}
# Norms around the cross-attention of one layer.
CROSS_NORMS_PER_LAYER = {topology: 2 if topology == "sandwich" else 1 for topology in NORMS_PER_LAYER}


def layer_sizes(config, plan, experts=None):
    """Sizes of one layer by part; of a sparse layer `experts` routed experts are counted (None: all of them)."""
    sizes = {"attention": attention_size(config, plan), "cross_attention": cross_attention_size(config, plan)}
    if plan.mlp == "dense":
        sizes["dense_mlp"] = mlp_size(config, plan.intermediate_size)
    else:
        times = config.num_experts if experts is None else experts
        sizes["router"] = router_size(config)
        sizes["experts"] = mlp_size(config, plan.intermediate_size, config.expert_bias) * times
        sizes["shared_experts"] = shared_experts_size(config)
    without_first = plan.index == 0 and not config.first_attention_norm
    behind_experts = plan.mlp == "sparse" and config.expert_output_norm
    across = 0 if plan.cross_width is None else CROSS_NORMS_PER_LAYER[plan.topology]
    norms = NORMS_PER_LAYER[plan.topology] + across - without_first + behind_experts
    sizes["norms"] = norm_size(config, config.hidden_size) * norms
    return sizes


def transform_size(config):
    """The dense layer and norm, or the projection alone, before the language-model head."""
    width = config.lm_head_width
    if config.lm_head_act is None:
        return linear_size(config.hidden_size, width) if config.embedding_projection == "tokens" else Size()
    return linear_size(config.hidden_size, width, config.lm_head_transform_bias) + norm_size(config, width)


def embedding_projection_size(config):
    """The projection from the width of the tables to that of the layers."""
    width, hidden = config.embedding_size, config.hidden_size
    return Size() if width == hidden else linear_size(width, hidden, bias=config.embedding_projection == "sum")


def lm_head_size(config):
    """The output projection as it is multiplied, whether or not its matrix is the embedding's."""
    return linear_size(config.lm_head_width, config.vocab_size, config.lm_head_bias)


def positions_size(config):
    """Numbers of the trained tables of positions and of buckets of distances."""
    kind, numbers = config.position_embedding_type, 0
    if kind in RELATIVE:
        tables = config.num_hidden_layers if config.relative_attention_per_layer else 1
        numbers += tables * config.relative_attention_num_buckets * config.num_attention_heads
    if kind in LEARNED:
        numbers += (config.max_position_embeddings + config.position_embedding_offset) * config.table_width
    return numbers


def check_row(config, length, name="length"):
    """Raise ValueError for a row that is longer than a learned table of positions, which the model refuses too."""
    limit = config.max_position_embeddings
    if config.position_embedding_type in LEARNED and length > limit:
        raise ValueError(
            f"{name}={length} lies beyond the learned table of max_position_embeddings={limit}, where the model refuses; give "
            f"at most {limit}"
        )


def outer_sizes(config):
    """Sizes of what stands outside the layers: (before, after)."""
    hidden, width = config.hidden_size, config.table_width
    head = lm_head_size(config)
    before = {
        "embedding": Size(0, config.vocab_size * config.embedding_size),
        "positions": Size(0, positions_size(config)),
        "token_types": Size(0, config.type_vocab_size * width),
        "embedding_projection": embedding_projection_size(config),
        "norms": norm_size(config, width) if config.embedding_norm else Size(),
    }
    after = {
        "norms": norm_size(config, hidden) if config.final_norm else Size(),
        "head_transform": transform_size(config),
        "lm_head": Size(0, head.vector) if config.tie_word_embeddings else head,
    }
    return before, after


STACK_NAMES = ("encoder", "decoder")
PART_ORDER = (
    *("embedding", "positions", "token_types", "embedding_projection", "attention", "cross_attention"),
    *("dense_mlp", "router", "experts", "shared_experts", "norms", "head_transform", "lm_head"),
)


def distinct_layers(config):
    """(`LayerPlan`, number of layers built alike) of a config; the plan is that of the first of them."""
    first, times = {}, Counter()
    for plan in config.layer_plan():
        kind = replace(plan, index=min(plan.index, 1), scaling=0.0)  # the first may lack a norm
        first.setdefault(kind, plan)
        times[kind] += 1
    return [(plan, times[kind]) for kind, plan in first.items()]


def _collect(config, experts):
    before, after = outer_sizes(config)
    layers = [(layer_sizes(config, plan, experts), times) for plan, times in distinct_layers(config)]
    totals = dict.fromkeys(PART_ORDER, 0)
    for sizes, times in ((before, 1), *layers, (after, 1)):
        for part, size in sizes.items():
            totals[part] += size.total * times
    return {part: total for part, total in totals.items() if total}


def count_parameters(config):
    """Parameters of the language model of `config`, as `ParameterCounts`; an encoder-decoder's are by stack and part.

    How obtained: from the config's layer plan alone; the tests compare with the model's own tensors for every toggle.
    """
    if len(config.stacks) > 1:
        return _count_pair(config)
    parts = _collect(config, None)
    active = _collect(config, config.num_experts_per_tok)
    sparse = sum(plan.mlp == "sparse" for plan in config.layer_plan())
    buffers = sparse * config.num_experts if config.router_balance == "bias" else 0
    return ParameterCounts(sum(parts.values()), sum(active.values()), parts, active, buffers)


def _count_pair(config):
    parts, active, buffers = {}, {}, config.vocab_size * config.final_logits_bias
    for name, stack in zip(STACK_NAMES, config.stacks, strict=True):
        counts = count_parameters(stack)
        # the head stands on the decoder; a shared table is counted there
        left_out = {"lm_head", "head_transform", *(("embedding",) if config.share_embeddings else ())}
        left_out = left_out if name == "encoder" else set()
        for found, kept in ((counts.parts, parts), (counts.active_parts, active)):
            kept |= {f"{name}_{part}": size for part, size in found.items() if part not in left_out}
        buffers += counts.buffers
    return ParameterCounts(sum(parts.values()), sum(active.values()), parts, active, buffers)
