"""Where AWQ may move a scale: each place where what one module puts out is all that some Linears read.

Notable here: sites come from the layer plan and the modules a layer really has, never from patterns over names; every
reader of a smoothed tensor is listed, whether it is quantised or only rescaled (router, shared-expert gate); a place
that cannot be smoothed exactly becomes a `SkippedSite` with its reason.
"""

from dataclasses import dataclass, field

# act(x / s) = act(x) / s holds for these alone, so that a scale passes through the activation of a plain network.
_HOMOGENEOUS = ("relu", "leaky_relu")


@dataclass(frozen=True)
class Site:
    """One smoothing: the source's output is divided by s, the columns of every reader are multiplied by s.

    Attributes:
        name: for reports, `source -> readers`.
        source: full name of the norm, or of the Linear whose rows are divided.
        kind: `norm` or `linear`.
        readers: full names of quantised Linears, one tuple per distinct input tensor (one per expert).
        followers: full names of modules that read the same tensor and are rescaled only.
        repeat: readers' heads per head of the source (grouped-query attention), else 1.
        block: channels per head where `repeat` > 1.
    """

    name: str
    source: str
    kind: str
    readers: tuple
    followers: tuple = ()
    repeat: int = 1
    block: int = 1

    def expand(self, scales):
        """Scales of the source's channels -> scales of the readers' columns."""
        if self.repeat == 1:
            return scales
        return scales.unflatten(-1, (-1, self.block)).repeat_interleave(self.repeat, dim=-2).flatten(-2)

    def reduce_mean(self, columns):
        """Means over the columns that share a scale: the inverse shape change of `expand`."""
        if self.repeat == 1:
            return columns
        return columns.unflatten(-1, (-1, self.repeat, self.block)).mean(-2).flatten(-2)


@dataclass(frozen=True)
class SkippedSite:
    """A place left unsmoothed, with the reason."""

    name: str
    reason: str


@dataclass
class LayerSites:
    """All of one layer: `sites`, `skipped`, and `linears`, the full names of every Linear to quantise."""

    sites: list = field(default_factory=list)
    skipped: list = field(default_factory=list)
    linears: list = field(default_factory=list)


# Topology -> (norm before attention, norm before the feed-forward), or the reason why there is none to fold into.
_NORMS_BEFORE = {
    "pre": ("input_layernorm", "post_attention_layernorm"),
    "sandwich": ("input_layernorm", "pre_feedforward_layernorm"),
    "parallel": ("input_layernorm", "input_layernorm"),
    "parallel_two_norms": ("input_layernorm", "post_attention_layernorm"),
    "post": "the residual stream enters without a norm before it",
    "post_ln": "the norm before it also feeds the residual stream",
    "pre_normed_residual": "the norm before it also feeds the residual stream",
}


def layer_sites(config, plan, prefix, layer, keep=frozenset()):
    """Sites of one layer.

    Args:
        config: VariantsConfig.
        plan: the layer's `LayerPlan`.
        prefix: full name of the layer, such as `model.layers.3`.
        layer: the module, with unfused experts.
        keep: full names of Linears that stay unquantised; they are rescaled where they must be.
    """
    found = LayerSites()
    found.linears = [name for name in quantizable_linears(prefix, layer) if name not in keep]
    reads_attention, reads_mlp = _attention_readers(config, prefix, layer), _mlp_readers(prefix, layer)
    norms = _NORMS_BEFORE[plan.topology]
    if isinstance(norms, str):
        for names, followers in (reads_attention, reads_mlp):
            found.skipped.append(SkippedSite(f"(no norm) -> {_short(names, followers)}", norms))
    elif norms[0] == norms[1]:
        names, followers = (a + b for a, b in zip(reads_attention, reads_mlp, strict=True))
        _add_norm_site(found, prefix, layer, norms[0], names, followers, keep)
    else:
        for norm, (names, followers) in zip(norms, (reads_attention, reads_mlp), strict=True):
            _add_norm_site(found, prefix, layer, norm, names, followers, keep)
    add_inner_sites = _add_latent_sites if plan.attention == "mla" else _add_value_site
    add_inner_sites(found, config, prefix, "self_attn", layer, keep)
    if plan.cross_width is not None:
        _add_cross_norm_site(found, plan, prefix, layer, keep)
        add_inner_sites(found, config, prefix, "cross_attn", layer, keep)
    _add_down_sites(found, config, prefix, layer, keep)
    return found


def quantizable_linears(prefix, layer):
    """Full names of the Linears of a layer that 4 bits suit: all but the router and the gate of the shared experts."""
    from torch import nn

    never = {"mlp.gate", "mlp.shared_expert_gate"}
    return [f"{prefix}.{name}" for name, m in layer.named_modules() if isinstance(m, nn.Linear) and name not in never]


def _attention_readers(config, prefix, layer):
    names = ("q_proj", "q_a_proj", "k_proj", "v_proj", "kv_a_proj_with_mqa", "gate_proj")
    found = [name for name in names if getattr(layer.self_attn, name, None) is not None]
    return [tuple(f"{prefix}.self_attn.{name}" for name in found)], ()


def _add_cross_norm_site(found, plan, prefix, layer, keep):
    """What reads a decoder's own states in its cross-attention, and what reads the encoder's."""
    attention = f"{prefix}.cross_attn"
    there = [name for name in (*_OF_STATES, *_OF_QUERIES) if getattr(layer.cross_attn, name, None) is not None]
    readers = [tuple(f"{attention}.{name}" for name in there if name in _OF_QUERIES)]
    norms = _NORMS_BEFORE[plan.topology]
    if isinstance(norms, str):
        found.skipped.append(SkippedSite(f"(no norm) -> {attention}: {_short(readers, ())}", norms))
    else:
        _add_norm_site(found, prefix, layer, "cross_attn_layernorm", readers, (), keep)
    states = ", ".join(name for name in there if name in _OF_STATES)
    reason = "the encoder's states are read by the cross-attention of every layer of the decoder"
    found.skipped.append(SkippedSite(f"(encoder) -> {attention}: {states}", reason))


# Of cross-attention: what reads the states of the encoder, and what reads the decoder's own.
_OF_STATES = ("k_proj", "v_proj", "kv_a_proj_with_mqa")
_OF_QUERIES = ("q_proj", "q_a_proj", "gate_proj")


def _mlp_readers(prefix, layer):
    """Groups of Linears that read the feed-forward's input, one per expert, and the modules that are only rescaled."""
    groups = [tuple(f"{name}.{linear}" for linear in _entry_linears(m)) for name, m in _networks(prefix, layer)]
    gates = ("gate", "shared_expert_gate")
    gates = tuple(f"{prefix}.mlp.{name}" for name in gates if getattr(layer.mlp, name, None) is not None)
    return groups, gates


def _networks(prefix, layer):
    """(full name, module) of the dense network, or of every routed expert and of the shared experts."""
    mlp = layer.mlp
    if not hasattr(mlp, "experts"):
        return [(f"{prefix}.mlp", mlp)]
    routed = [(f"{prefix}.mlp.experts.{index}", expert) for index, expert in mlp.experts.named_children()]
    shared = getattr(mlp, "shared_experts", None)
    return routed + ([] if shared is None else [(f"{prefix}.mlp.shared_experts", shared)])


def _entry_linears(network):
    return [name for name in ("gate_proj", "up_proj") if hasattr(network, name)]


def _add_site(found, keep, source, kind, groups, followers=(), **heads):
    readers = tuple(names for names in (tuple(n for n in g if n not in keep) for g in groups) if names)
    followers = (*followers, *(name for group in groups for name in group if name in keep))
    name = f"{source} -> {_short(groups, followers)}"
    if readers:
        found.sites.append(Site(name, source, kind, readers, followers, **heads))
    else:
        found.skipped.append(SkippedSite(name, "none of its readers is quantised"))


def _add_norm_site(found, prefix, layer, norm, groups, followers, keep):
    if getattr(layer.get_submodule(norm), "weight", None) is None:
        name = f"{prefix}.{norm} -> {_short(groups, followers)}"
        found.skipped.append(SkippedSite(name, "the norm has no weight to fold a scale into"))
    else:
        _add_site(found, keep, f"{prefix}.{norm}", "norm", groups, followers)


def _add_value_site(found, config, prefix, part, layer, keep):
    attention = f"{prefix}.{part}"
    if config.clip_qkv is not None:
        found.skipped.append(SkippedSite(f"{attention}.v_proj -> o_proj", "clip_qkv clips what a scale would change"))
        return
    repeat = config.num_attention_heads // config.num_key_value_heads
    heads = {"repeat": repeat, "block": config.head_dim}
    _add_site(found, keep, f"{attention}.v_proj", "linear", [(f"{attention}.o_proj",)], **heads)


def _add_latent_sites(found, config, prefix, part, layer, keep):
    for norm, reader in (("q_a_layernorm", "q_b_proj"), ("kv_a_layernorm", "kv_b_proj")):
        if hasattr(layer.get_submodule(part), norm):
            _add_norm_site(found, prefix, layer, f"{part}.{norm}", [(f"{prefix}.{part}.{reader}",)], (), keep)
    name = f"{prefix}.{part}.kv_b_proj -> o_proj"
    found.skipped.append(SkippedSite(name, "kv_b_proj holds keys and values, and its rows are absorbed when decoding"))


def _add_down_sites(found, config, prefix, layer, keep):
    reason = _why_not_through_activation(config)
    for name, _ in _networks(prefix, layer):
        if reason is None:
            _add_site(found, keep, f"{name}.up_proj", "linear", [(f"{name}.down_proj",)])
        else:
            found.skipped.append(SkippedSite(f"{name}.up_proj -> down_proj", reason))


def _why_not_through_activation(config):
    if config.mlp_type == "gated":
        return None if config.swiglu_limit is None else "swiglu_limit clamps the up branch, which is not linear"
    if config.hidden_act in _HOMOGENEOUS:
        return None
    return f"hidden_act={config.hidden_act!r} stands between them and is not positively homogeneous"


def _short(groups, followers):
    """Last parts of the readers' names, each once: `q_proj, k_proj, v_proj`, or `experts.*.gate_proj`."""
    tails = []
    for name in (name for group in groups for name in group):
        parts = name.split(".")
        tails.append(".".join(("experts", "*", parts[-1]) if "experts" in parts else parts[-1:]))
    tails += [name.rpartition(".")[2] for name in followers]
    return ", ".join(dict.fromkeys(tails))
