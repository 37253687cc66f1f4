"""One frozen record per layer: every per-layer fact, resolved once from the config.

Notable here: blocks, masks, caches, counts and conversions all read the same plan, so nothing can disagree with the model.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LayerPlan:
    """What one layer is built from.

    Attributes:
        index: position in the stack, from 0.
        attention: `gqa` or `mla`.
        layer_type: `full_attention`, `sliding_attention` or `chunked_attention`; also the key of its mask.
        window: number of visible tokens of a sliding layer (itself included), else None.
        chunk: chunk length of a chunked layer, else None.
        rope_key: key of the rotary embedding that turns this layer's queries and keys, or None where nothing turns.
        mlp: `dense` or `sparse`.
        topology: residual topology, a key of `TOPOLOGIES`.
        intermediate_size: width of the dense feed-forward, or of one routed expert.
        scaling: factor on the attention scores before soft-cap, bias and mask.
        qk_norm: a key of `QK_NORMS`; `none` where `qk_norm_layers` leaves the layer out.
        tempered: whether queries are multiplied by a factor of their position.
        cross_width: width of the states of another stack that the layer also attends to, or None where there are none.
    """

    index: int
    attention: str
    layer_type: str
    window: int | None
    chunk: int | None
    rope_key: str | None
    mlp: str
    topology: str
    intermediate_size: int
    scaling: float
    qk_norm: str
    tempered: bool
    cross_width: int | None = None


def rope_key_of(config, index):
    """Key of the rotary embedding of layer `index`: its layer type when `rope_parameters` is nested, `default` when flat."""
    if config.position_embedding_type != "rope" or not config.no_rope_layers[index]:
        return None
    if not config.rope_is_nested:
        return "default"
    layer_type = config.layer_types[index]
    return None if config.rope_parameters[layer_type] is None else layer_type


def plain_scaling(config, index):
    """Score multiplier of layer `index` where nothing is rotated.

    d^-1/2 with d = `query_pre_attn_scalar`, or the width of a query head; or `attention_multiplier` itself. Divided by
    `index + 1` under `scale_attn_by_inverse_layer_idx` (GPT-2).
    """
    scaling = config.attention_multiplier
    if scaling is None:
        scaling = (config.query_pre_attn_scalar or config.query_head_dim) ** -0.5
    return scaling / (index + 1) if config.scale_attn_by_inverse_layer_idx else scaling


def attention_scaling(config, index):
    """Score multiplier of layer `index`: `plain_scaling`, which MLA under a YaRN with `mscale_all_dim` multiplies by
    (0.1 * mscale_all_dim * ln(factor) + 1)^2 (DeepSeek-V2, arXiv:2405.04434 §3.1.4).
    """
    from math import log

    scaling = plain_scaling(config, index)
    key = rope_key_of(config, index)
    if config.attention_type == "mla" and key is not None:
        rope = config.rope_of(key)
        if rope["rope_type"] != "default" and rope.get("mscale_all_dim") and rope["factor"] > 1:
            scaling = scaling * (0.1 * rope["mscale_all_dim"] * log(rope["factor"]) + 1.0) ** 2
    return scaling


def cross_plan(config, plan):
    """The plan of the attention of a layer to the states of another stack.

    Those states have an order of their own, which no position scheme, window or query temperature of this stack measures, so
    none of them acts; scale, soft-cap, sinks, clipping, gate, biases and a QK-norm of every layer are those of self-attention.
    """
    return replace(
        plan,
        layer_type="full_attention",
        window=None,
        chunk=None,
        rope_key=None,
        scaling=plain_scaling(config, plan.index),
        qk_norm=config.qk_norm if config.qk_norm_layers == "all" else "none",
        tempered=False,
    )


def resolve_layer_plan(config):
    """The plan of every layer of `config`, as a tuple of `LayerPlan`."""
    plans = []
    for index in range(config.num_hidden_layers):
        layer_type, mlp = config.layer_types[index], config.mlp_layer_types[index]
        rope_key = rope_key_of(config, index)
        turns = rope_key is not None
        plans.append(
            LayerPlan(
                index=index,
                attention=config.attention_type,
                layer_type=layer_type,
                window=config.sliding_window if layer_type == "sliding_attention" else None,
                chunk=config.attention_chunk_size if layer_type == "chunked_attention" else None,
                rope_key=rope_key,
                mlp=mlp,
                topology=config.norm_placement,
                intermediate_size=config.moe_intermediate_size if mlp == "sparse" else config.intermediate_size,
                scaling=attention_scaling(config, index),
                qk_norm=config.qk_norm if turns or config.qk_norm_layers == "all" else "none",
                tempered=config.attn_temperature_tuning and not (turns and config.attn_temperature_layers == "nope"),
                cross_width=config.cross_attention_hidden_size if config.add_cross_attention else None,
            )
        )
    return tuple(plans)


def mlp_biases(config, bias=None):
    """Whether a feed-forward's projections into its hidden layer have biases, and the one out; `bias` speaks for both."""
    if bias is not None:
        return bias, bias
    return config.mlp_bias, config.mlp_bias if config.mlp_out_bias is None else config.mlp_out_bias
