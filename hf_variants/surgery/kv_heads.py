"""More or fewer key-value heads in a trained model: MHA to GQA to MQA, and back.

Notable here: more heads are copies, so the logits stay equal; fewer heads are an approximation that reports its error layer by
layer, and heals in a little training (Ainslie et al. 2023, arXiv 2305.13245: 5% of the pretraining).
"""

from copy import deepcopy
from dataclasses import asdict, dataclass, field

from hf_variants.modeling.vocabulary import BIASED

from .activations import input_roots
from .head_tensors import read_heads, reorder, unweighed, weighed, write_heads
from .merging import METHODS, duplicated, similar_order

ORDERS = ("kept", "similar")


@dataclass
class KVHeadsReport:
    """What a change of heads did.

    Attributes:
        before, after: key-value heads.
        method, order: how heads were merged and grouped; method is "duplicate" for more heads.
        exact: whether the new model computes the same.
        weighed: whether errors count by activations (a calibration text was given) or by weights.
        layers: per layer, {"key_error", "value_error"}: norm of what query heads lost of their keys' and values' projection,
            as a share of the norm; and "order" where heads moved.
        kv_bytes_per_token: (before, after), in 16 bits.
    """

    before: int
    after: int
    method: str
    order: str
    exact: bool
    weighed: bool
    kv_bytes_per_token: tuple
    layers: list = field(default_factory=list)

    def as_dict(self):
        """Plain data."""
        return asdict(self)


def kv_heads(model, num_key_value_heads, method="mean", order="kept", calibration=None, progress=None):
    """A copy of `model` with `num_key_value_heads` key-value heads, and a `KVHeadsReport`.

    Args:
        model: a model of the family with grouped attention; left as it is.
        num_key_value_heads: a multiple of the present number (copies), or a divisor of it (merged).
        method: "mean", "first" or "svd", see `merging.py`.
        order: "kept" merges neighbours; "similar" first groups heads that are alike, with their query heads.
        calibration: batches of ids (int64 [B, T]); errors then count by what these texts make of keys and values, for
            "svd" and "similar" and in the report, instead of by weights alone.
        progress: called with (done, layers).

    Raises:
        ValueError: for a number that is neither, an unknown method or order, or toggles under which a method is not exact
            mathematics (MLA; "svd" with QK-norm, clipped projections or gated outputs; "similar" with ALiBi).
    """
    config = model.config
    check_change(config, num_key_value_heads, method, order, calibration is not None)
    before = config.num_key_value_heads
    more = num_key_value_heads >= before
    changed = _empty_copy(model, num_key_value_heads)
    report = KVHeadsReport(
        before,
        num_key_value_heads,
        "duplicate" if more else method,
        order,
        more,
        calibration is not None and not more,
        tuple(_kv_bytes(c) for c in (config, changed.config)),
    )
    sources, targets = _attentions(model), _attentions(changed)
    roots = [None] * len(sources) if more or calibration is None else input_roots(model, calibration)
    for done, (source, target, root) in enumerate(zip(sources, targets, roots, strict=True), start=1):
        heads, facts = weighed(read_heads(source), root), {}
        if more:
            merged = duplicated(heads, num_key_value_heads // before)
            facts["key_error"] = facts["value_error"] = 0.0
        else:
            if order == "similar":
                facts["order"] = similar_order(heads, num_key_value_heads)
                heads = reorder(heads, facts["order"])
            merged, keys, values = METHODS[method](heads, num_key_value_heads, rotary_pairs(source))
            facts["key_error"] = float((keys - heads.key).norm() / heads.key.norm())
            facts["value_error"] = float((values - heads.value).norm() / heads.value.norm())
        write_heads(target, unweighed(merged, root))
        report.layers.append(facts)
        if progress:
            progress(done, len(sources))
    return changed, report


def check_change(config, num_key_value_heads, method="mean", order="kept", calibrated=False):
    """Refuse a change that cannot be made, before any weight is read. Raises ValueError."""
    if getattr(config, "attention_type", None) != "gqa":
        kind = getattr(config, "attention_type", config.model_type)
        raise ValueError(f"attention_type={kind!r} has no key-value heads to change; kv_heads needs 'gqa', 'mha' or 'mqa'")
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; choose from {sorted(METHODS)}")
    if order not in ORDERS:
        raise ValueError(f"order={order!r} is unknown; choose from {list(ORDERS)}")
    before, heads = config.num_key_value_heads, config.num_attention_heads
    choices = [n for n in range(1, heads + 1) if heads % n == 0 and (n % before == 0 or before % n == 0)]
    if isinstance(num_key_value_heads, bool) or num_key_value_heads not in choices:
        raise ValueError(
            f"num_key_value_heads={num_key_value_heads!r} cannot be made of {before} under {heads} query heads; "
            f"choose from {choices}"
        )
    if num_key_value_heads >= before:
        asked = {"method": (method, "mean"), "order": (order, "kept"), "calibration": (calibrated, False)}
        for name, (given, default) in asked.items():
            if given != default:
                raise ValueError(
                    f"{name}={given!r} says how heads are merged, but {before} key-value heads become {num_key_value_heads}: "
                    "copies are exact; leave it out"
                )
        return
    if order == "similar" and config.position_embedding_type in BIASED:
        raise ValueError(
            f"order='similar' moves heads, but position_embedding_type={config.position_embedding_type!r} gives each place "
            "a bias of its own; keep the order"
        )
    if method == "svd":
        for name, free in (("qk_norm", ("none",)), ("clip_qkv", (None,)), ("attn_output_gate", ("none", "head"))):
            if getattr(config, name) not in free:
                raise ValueError(
                    f"method='svd' turns heads, which does not commute with {name}={getattr(config, name)!r}; "
                    "choose 'mean' or 'first'"
                )


def rotary_pairs(attention):
    """Pairs of channels of a head that RoPE turns together; empty where it turns none."""
    config = attention.config
    key = config.layer_plan()[attention.layer_idx].rope_key
    if key is None:
        return []
    turned = config.rotary_dim_of(key)
    if config.rope_interleaved:
        return [(channel, channel + 1) for channel in range(0, turned, 2)]
    return [(channel, channel + turned // 2) for channel in range(turned // 2)]


def _attentions(model):
    return [layer.self_attn for layer in model.base_model.layers]


def _empty_copy(model, num_key_value_heads):
    """A model of the changed config with every weight but those of attention copied."""
    config = deepcopy(model.config)
    config.num_key_value_heads = num_key_value_heads
    config.validate()
    changed = type(model)(config).to(dtype=model.dtype).eval()
    own = changed.state_dict()
    state = {name: tensor for name, tensor in model.state_dict().items() if own[name].shape == tensor.shape}
    changed.load_state_dict(state, strict=False)
    changed.tie_weights()
    changed.generation_config = deepcopy(model.generation_config)
    return changed


def _kv_bytes(config):
    from ..analysis import kv_cache_size

    return kv_cache_size(config, 1).per_token
