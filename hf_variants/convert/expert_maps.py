"""Config rules for experts: which layers are sparse, and what their experts are.

Notable here: families differ in how they say which layers are sparse (`SparseLayers`) and in the names of a handful of
keys; the rest is one rule.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hf_variants.convert.config_map import ConfigRule, Refuse
from hf_variants.convert.shared_maps import aux_loss
from hf_variants.convert.weight_rules import keep, rename


@dataclass(frozen=True)
class SparseLayers:
    """`read(native)`: "dense" or "sparse" of each layer; `write(config)`: the native keys that say so."""

    read: Callable
    write: Callable


@dataclass
class Experts(ConfigRule):
    """Experts of some layers.

    Attributes:
        keys: fields of ours to native keys.
        layers: how the sparse layers are named.
        fixed: toggles without a native key.
        aux_loss: whether a balance loss is added while router logits are returned (Mixtral).
    """

    keys: dict
    layers: SparseLayers
    fixed: dict = field(default_factory=dict)
    aux_loss: bool = False

    def read(self, native):
        kinds = self.layers.read(native)
        if "sparse" not in kinds:
            return {}
        found = {ours: getattr(native, name) for ours, name in self.keys.items()}
        loss = aux_loss().read(native) if self.aux_loss else {}
        return {"mlp_layer_types": kinds, **found, **loss, **self.fixed}

    def write(self, config):
        written = {**self.layers.write(config), **(aux_loss().write(config) if self.aux_loss else {})}
        return (
            {**written, **{name: getattr(config, ours) for ours, name in self.keys.items()}} if config.has_experts else written
        )


# ---- which layers are sparse ----
EVERY_LAYER = SparseLayers(lambda native: ["sparse"] * native.num_hidden_layers, lambda config: {})

LAYER_LIST = SparseLayers(
    lambda native: list(native.mlp_layer_types), lambda config: {"mlp_layer_types": list(config.mlp_layer_types)}
)


def first_layers_dense(key):
    """Dense layers first, as many as the native `key` says, and sparse ones behind them."""

    def read(native):
        dense = min(getattr(native, key), native.num_hidden_layers)
        return ["dense"] * dense + ["sparse"] * (native.num_hidden_layers - dense)

    def write(config):
        kinds = config.mlp_layer_types
        return {key: kinds.index("sparse") if "sparse" in kinds else len(kinds)}

    return SparseLayers(read, write)


FIRST_DENSE = first_layers_dense("first_k_dense_replace")


def _read_steps(native):
    def is_sparse(index):
        return index not in native.mlp_only_layers and native.num_experts > 0 and (index + 1) % native.decoder_sparse_step == 0

    return ["sparse" if is_sparse(index) else "dense" for index in range(native.num_hidden_layers)]


def _write_steps(config):
    dense = [index for index, kind in enumerate(config.mlp_layer_types) if kind == "dense"]
    return {"decoder_sparse_step": 1, "mlp_only_layers": dense}


STEPS = SparseLayers(_read_steps, _write_steps)


# ---- names of keys ----
def same_names(*names):
    """Keys of one name on both sides."""
    return {name: name for name in names}


DEEPSEEK_KEYS = {
    "num_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
    **same_names("num_experts_per_tok", "moe_intermediate_size", "routed_scaling_factor"),
}
GROUP_KEYS = same_names("norm_topk_prob", "n_group", "topk_group")

# DeepSeek-V3's router: a sigmoid per expert, and a bias that only the choice sees.
SIGMOID_ROUTER = {"router_scoring": "sigmoid", "router_balance": "bias"}


def needs_groups():
    """`n_group` and `topk_group` of None."""
    return Refuse(
        "n_group",
        lambda native: native.n_group is None or native.topk_group is None,
        "natively it fails when tokens are routed; use n_group=1 and topk_group=1 for no groups",
    )


def needs_shared_experts():
    """Sparse layers without shared experts, where natively a network of width zero is built."""
    return Refuse(
        "n_shared_experts",
        lambda native: not native.n_shared_experts and getattr(native, "first_k_dense_replace", 0) < native.num_hidden_layers,
        "natively it builds shared experts of width zero or fails; use at least 1",
    )


def deepseek_v3_experts(layers, **fixed):
    """The experts of DeepSeek-V3, in the `layers` (`SparseLayers`) of a family that may fix further toggles."""
    return [
        needs_groups(),
        needs_shared_experts(),
        Experts({**DEEPSEEK_KEYS, **GROUP_KEYS}, layers, {**SIGMOID_ROUTER, **fixed}),
    ]


def no_softmax_balance():
    """A balance loss over a softmax, beside a router that scores by sigmoids."""
    return Refuse(
        "output_router_logits",
        lambda native: native.output_router_logits and native.router_aux_loss_coef != 0,
        "the balance loss that it adds is taken over a softmax that its sigmoid router does not use; set it to False",
    )


# ---- weights ----
_MLP = "model.layers.*.mlp."
ROUTED_EXPERTS = keep(_MLP + "experts.gate_up_proj", _MLP + "experts.down_proj")
# The router and the routed experts of blocks that natively keep the selection bias beside them.
EXPERTS_WITH_BIAS_BESIDE = [
    *ROUTED_EXPERTS,
    *keep(_MLP + "gate.weight"),
    rename(_MLP + "e_score_correction_bias", _MLP + "gate.e_score_correction_bias"),
]
DENSE_MLP = keep(*(f"{_MLP}{part}_proj.*" for part in ("gate", "up", "down")))


def shared_experts(native):
    """The shared network under a native name below `mlp`."""
    return [rename(f"{_MLP}{native}.*.weight", _MLP + "shared_experts.*.weight")]
