"""A diagram of what a config builds, from the ids to the logits, and what one layer computes, as plain text.

Notable here: what a layer computes is written as the two equations of its residual topology; layers that repeat are drawn
once.
"""

from ..modeling.vocabulary import LEARNED
from .layer_pattern import pattern_of

# What a layer makes of its input x: after attention, then after the feed-forward. One entry per residual topology.
EQUATIONS = {
    "pre": ("h = x + attention(norm(x))", "y = h + mlp(norm(h))"),
    "pre_normed_residual": ("h = n + attention(n), n = norm(x)", "y = m + mlp(m), m = norm(h)"),
    "post": ("h = x + norm(attention(x))", "y = h + norm(mlp(h))"),
    "post_ln": ("h = norm(x + attention(x))", "y = norm(h + mlp(h))"),
    "sandwich": ("h = x + norm(attention(norm(x)))", "y = h + norm(mlp(norm(h)))"),
    "parallel": ("n = norm(x)", "y = x + attention(n) + mlp(n)"),
    "parallel_two_norms": ("y = x + attention(norm(x)) + mlp(norm(x))", "(each with a norm of its own)"),
}
# What cross-attention adds to it, with `states` of the other stack.
CROSS_EQUATIONS = {
    "pre": "; h += cross(norm(h), states)",
    "pre_normed_residual": "; h = c + cross(c, states), c = norm(h)",
    "post": "; h += norm(cross(h, states))",
    "post_ln": "; h = norm(h + cross(h, states))",
    "sandwich": "; h += norm(cross(norm(h), states))",
    "parallel": "; x += cross(norm(x), states) beside both",
    "parallel_two_norms": "; x += cross(norm(x), states) beside both",
}


def diagram(config, kind_of, head=True):
    """The stack as lines of text.

    Args:
        config: a `VariantsConfig`.
        kind_of: function of a `LayerPlan` to the words for its layer; equal words are drawn as one.
        head: whether a language-model head stands on the stack; else it ends with its states.
    """
    lines = ["token ids"]
    for name, words in _before(config):
        lines += ["  |", f"{name:<16}{words}"]
    lines.append("  |")
    for times, runs in pattern_of([kind_of(plan) for plan in config.layer_plan()]):
        repeated = times > 1
        lines += [f"  +- {times} times:"] if repeated else []
        for count, words in runs:
            layers = f"{count} layer" + ("s" if count > 1 else "")
            lines.append(f"  |{'    ' if repeated else '  '}{layers:<12}{words}")
    if config.final_norm:
        lines += ["  |", f"{'norm':<16}{config.norm_type}"]
    if not head:
        return lines + ["  |", "states"]
    for name, words in _head(config):
        lines += ["  |", f"{name:<16}{words}"]
    return lines + ["  |", "logits" if config.final_logit_softcapping is None else _capped(config)]


def _before(config):
    rows, width = config.vocab_size, config.embedding_size
    scaled = "" if config.embedding_multiplier == 1 else f", times {config.embedding_multiplier:.4g}"
    yield "embed_tokens", f"{rows:,} x {width:,}{scaled}"
    kind = config.position_embedding_type
    if kind in LEARNED:
        yield "+ positions", f"learned, {config.max_position_embeddings + config.position_embedding_offset:,} x {width:,}"
    elif kind.startswith("sinusoidal"):
        yield "+ positions", kind.replace("_", " in ")
    if config.type_vocab_size:
        yield "+ token types", f"{config.type_vocab_size} x {width:,}"
    if config.embedding_norm:
        yield "norm", config.norm_type
    if width != config.hidden_size:
        yield "projection", f"{width:,} -> {config.hidden_size:,}"


def _head(config):
    if config.lm_head_act is not None:
        yield "head transform", f"norm({config.lm_head_act}(dense)), {config.hidden_size:,} -> {config.embedding_size:,}"
    width = config.hidden_size if config.lm_head_act is None else config.embedding_size
    tied = ", tied to embed_tokens" if config.tie_word_embeddings else ""
    divided = "" if config.logits_scaling == 1 else f", divided by {config.logits_scaling:.4g}"
    yield "lm_head", f"{width:,} x {config.vocab_size:,}{tied}{divided}"


def _capped(config):
    return f"{'logits':<16}soft-capped at {config.final_logit_softcapping:g}"


def layer_rows(config):
    """(name, words) of what one layer computes: the equations of its topology, and the feed-forward of each kind."""
    first, second = EQUATIONS[config.norm_placement]
    if config.add_cross_attention:
        first = first + CROSS_EQUATIONS[config.norm_placement]
    yield "layer", first
    yield "", second + ("" if config.residual_multiplier == 1 else f" (branches times {config.residual_multiplier:g})")
    kinds = dict.fromkeys(config.mlp_layer_types)
    for kind in kinds:
        name = "mlp" if len(kinds) == 1 else f"mlp, {kind}"
        yield name, _sparse(config) if kind == "sparse" else _network(config, config.intermediate_size)


def _network(config, width):
    hidden, act = config.hidden_size, config.hidden_act
    inner = f"{act}(gate(x)) * up(x)" if config.mlp_type == "gated" else f"{act}(up(x))"
    return f"down({inner}), {hidden:,} -> {width:,} -> {hidden:,}"


def _sparse(config):
    shared = ""
    if config.num_shared_experts:
        gated = "gated " if config.shared_expert_gate else ""
        shared = f" + {gated}shared expert of width {config.shared_expert_intermediate_size:,}"
    routed = f"{config.num_experts_per_tok} of {config.num_experts} experts by {config.router_scoring}"
    groups = f", within {config.topk_group} of {config.n_group} groups" if config.n_group > 1 else ""
    return f"{routed}{groups}{shared}; each {_network(config, config.moe_intermediate_size)}"
