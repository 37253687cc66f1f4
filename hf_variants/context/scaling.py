"""A config with a longer context: RoPE rescaled by one of the published rules.

Notable here: only the config changes, so the same weights can be read under every rule; what cannot be scaled is
refused with the reason; a config that was scaled before is left alone unless told otherwise.
"""

import copy

from ..modeling.vocabulary import CHOICES, ROPE_KEYS, nearest
from .frequencies import expected_rotation

METHODS = ("none", "theta", *(kind for kind in CHOICES["rope_type"] if kind != "default"))

# Options that a method needs and the values used where none are given (Llama 3.1's own for its rule).
_DEFAULT_OPTIONS = {"llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}}
_RECORDS_ORIGINAL = ("dynamic", "yarn", "llama3", "longrope")
_KEPT = ("rope_theta", "partial_rotary_factor")


def scale_rope(config, method, factor, layers=None, force=False, **options):
    """A copy of `config` whose context is `factor` times longer.

    `max_position_embeddings` is multiplied by `factor` and rounded; `rope_theta` is kept by all but `theta`; the rules that
    need the original length get it as `original_max_position_embeddings`.

    Args:
        config: a config of the family with RoPE.
        method: one of `METHODS`. `none` lengthens the context and leaves the frequencies alone, for comparison. `theta`
            raises the base alone and keeps the plain rule (Xiong et al. 2023, arXiv:2309.16039), to the option `rope_theta`
            or else to theta * factor^(d / (d - 2)), the base of `ntk`.
        factor: how many times longer, at least 1.
        layers: `full_attention` or `all`. None means all layers where `rope_parameters` is one flat dict, and the full
            layers alone where it is nested by layer type: a sliding or chunked layer never compares tokens further
            apart than its window, so it meets no distance that it was not trained on. `full_attention` on a flat dict
            makes it nested.
        force: scale a config that is already scaled: its old rule is replaced, and `factor` counts from the length of
            the first training.
        options: further keys of the rule, such as `beta_fast` (yarn) or `short_factor` and `long_factor` (longrope). A search
            gives the two lists of longrope; without them short_factor is all ones and long_factor YaRN's ramp.

    Raises:
        ValueError: without RoPE, for an unknown method, a factor below 1, an unknown or missing option, an already
            scaled config without `force`, or where no layer would be scaled.
    """
    _check_request(config, method, factor, layers)
    chosen = _chosen_keys(config, layers)
    _check_unscaled(config, chosen, force)
    original = original_length(config)
    extended = round(original * factor)
    options = {**_DEFAULT_OPTIONS.get(method, {}), **options}
    check_options(method, options)
    result = copy.deepcopy(config)
    scaled = lambda key, rope: _scaled(rope, method, factor, original, options, config.rotary_dim_of(key))  # noqa: E731
    nested = config.rope_is_nested or (layers == "full_attention" and set(config.layer_types) != {"full_attention"})
    if nested:
        result.rope_parameters = {
            key: scaled(key, rope) if key in chosen else rope for key, rope in _by_layer_type(config).items()
        }
    else:
        result.rope_parameters = scaled("default", config.rope_parameters)
    result.max_position_embeddings = extended
    result.check()
    return result


def original_length(config):
    """Tokens of the context that the weights were first trained on, before any rescaling."""
    length = config.max_position_embeddings
    for key in config.rope_keys:
        rope = config.rope_of(key)
        if rope.get("original_max_position_embeddings"):
            return rope["original_max_position_embeddings"]
        if rope.get("factor"):
            length = min(length, round(config.max_position_embeddings / rope["factor"]))
    return length


def _check_request(config, method, factor, layers):
    if getattr(config, "position_embedding_type", None) != "rope":
        kind = getattr(config, "position_embedding_type", None)
        raise ValueError(
            f"position_embedding_type={kind!r} has no rotary frequencies to rescale; the context of 'learned' and "
            "'learned_relative' is their table, the others take longer input as they are"
        )
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown{nearest(method, METHODS)}; choose from {list(METHODS)}")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor < float("inf"):
        raise ValueError(f"factor={factor!r} must be a number of at least 1: it says how many times longer the context is")
    if layers not in (None, "full_attention", "all"):
        raise ValueError(f"layers={layers!r} is unknown; choose from [None, 'full_attention', 'all']")


def _check_unscaled(config, chosen, force):
    rules = {key: config.rope_of(key)["rope_type"] for key in chosen}
    if not force and set(rules.values()) != {"default"}:
        raise ValueError(
            f"rope_parameters is already scaled ({rules}); scaling it again would compound two rules. Pass force=True "
            "to replace the rule, with factor counted from the original length"
        )


def check_options(method, options):
    """Raise a ValueError for an option that the rule of a method does not take, or one of two lists without the other."""
    kind = "default" if method in ("none", "theta") else method
    required, optional = ROPE_KEYS[kind]
    optional = (*optional, "rope_theta") if method == "theta" else optional
    known = [key for key in (*required, *optional) if key not in ("factor", "original_max_position_embeddings")]
    for key in options:
        if key not in known:
            raise ValueError(f"option {key!r} has no effect with method={method!r}{nearest(key, known)}; it takes {known}")
    lists = [key for key in ("short_factor", "long_factor") if key in options]
    if len(lists) == 1:
        raise ValueError(f"method='longrope' takes short_factor and long_factor together; {lists[0]} alone was given")


def _chosen_keys(config, layers):
    """Keys of `rope_parameters` to rescale."""
    if not config.rope_is_nested and layers != "full_attention":
        return ("default",)
    turned = {plan.layer_type for plan in config.layer_plan() if plan.rope_key is not None}
    chosen = [key for key in _by_layer_type(config) if key in turned and (layers == "all" or key == "full_attention")]
    if not chosen:
        raise ValueError(
            f"rope_parameters has no 'full_attention' entry to rescale (it turns {sorted(turned)}): sliding and "
            "chunked layers never compare tokens beyond their window, so their frequencies need no change; pass "
            "layers='all' to rescale them as well"
        )
    return tuple(chosen)


def _by_layer_type(config):
    """`rope_parameters` as one entry per layer type in use."""
    if config.rope_is_nested:
        return dict(config.rope_parameters)
    return {kind: dict(config.rope_parameters) for kind in dict.fromkeys(config.layer_types)}


def _scaled(rope, method, factor, original, options, dim):
    kept = {key: rope[key] for key in _KEPT if key in rope}
    if method == "none":
        return {"rope_type": "default", **kept}
    if method == "theta":
        raised = options.get("rope_theta", rope["rope_theta"] * factor ** (dim / (dim - 2)))
        if raised < rope["rope_theta"]:
            raise ValueError(f"option rope_theta={raised} is less than the {rope['rope_theta']} of the checkpoint; raise it")
        return {"rope_type": "default", **kept, "rope_theta": float(raised)}
    if method == "longrope" and "long_factor" not in options:
        options = {**options, **_longrope_lists(rope["rope_theta"], factor, original, dim)}
    scaled = {"rope_type": method, **kept, "factor": float(factor)}
    if method in _RECORDS_ORIGINAL:
        scaled["original_max_position_embeddings"] = original
    return {**scaled, **options}


def _longrope_lists(theta, factor, original, dim):
    """Divisors of each frequency where no search was made: none for short rows, YaRN's for long ones."""
    plain, _ = expected_rotation({"rope_type": "default", "rope_theta": theta}, dim, original)
    keys = {"rope_theta": theta, "factor": float(factor), "original_max_position_embeddings": original}
    ramped, _ = expected_rotation({"rope_type": "yarn", **keys}, dim, original)
    return {"short_factor": [1.0] * (dim // 2), "long_factor": (plain / ramped).tolist()}
