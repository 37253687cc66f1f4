"""RoPE keys of the config: brought into one standard form, then checked.

Notable here: old keys (`rope_theta`, `rope_scaling`, `type`) are folded in, defaults are written out, and a key that the
chosen rule would not read is refused instead of ignored.
"""

from math import inf

from .vocabulary import CHOICES, ROPE_KEYS, nearest

DEFAULT_THETA = 10000.0
_LENGTH_RULES = ("dynamic", "yarn", "llama3", "longrope")


def standard_rope_parameters(config, rope_theta=None, rope_scaling=None):
    """Write the standard form of `config.rope_parameters` (flat, or one dict per layer type) in place.

    Raises:
        ValueError: where old and new keys disagree, or rotary keys meet positions without rotation.
    """
    given = rope_scaling if config.rope_parameters is None else config.rope_parameters
    if config.rope_parameters is not None and rope_scaling is not None and rope_scaling != config.rope_parameters:
        raise ValueError(
            f"rope_scaling={rope_scaling} and rope_parameters={config.rope_parameters} disagree; give rope_parameters alone"
        )
    if config.position_embedding_type != "rope":
        if given is not None or rope_theta is not None:
            raise ValueError(
                f"rope_parameters={given}, rope_theta={rope_theta} have no effect with position_embedding_type="
                f"{config.position_embedding_type!r}; use position_embedding_type='rope'"
            )
        return
    given = dict(given or {})
    if rope_theta is not None and given.get("rope_theta", rope_theta) != rope_theta:
        raise ValueError(
            f"rope_theta={rope_theta} and rope_parameters['rope_theta']={given['rope_theta']} disagree; give the latter alone"
        )
    if _is_nested(given):
        config.rope_parameters = {
            key: None if value is None else _standard(config, value, rope_theta) for key, value in given.items()
        }
    else:
        config.rope_parameters = _standard(config, given, rope_theta)


def check_rope_parameters(config):
    """Refuse missing, unknown and impossible RoPE keys. Raises ValueError."""
    if config.position_embedding_type != "rope":
        return
    if not config.rope_is_nested:
        _check(config, "rope_parameters", config.rope_parameters)
        return
    for layer_type in dict.fromkeys(config.layer_types):
        if layer_type not in config.rope_parameters:
            raise ValueError(
                f"rope_parameters holds {sorted(config.rope_parameters)} but layer_types uses {layer_type!r}; add an entry "
                "for it (None for no rotation there)"
            )
    for key, value in config.rope_parameters.items():
        if key not in config.layer_types:
            raise ValueError(
                f"rope_parameters[{key!r}] has no effect: layer_types holds {sorted(set(config.layer_types))} only"
            )
        if value is not None:
            _check(config, f"rope_parameters[{key!r}]", value)


def _is_nested(given):
    return any(key in CHOICES["layer_types"] for key in given)


def _standard(config, given, rope_theta):
    if not isinstance(given, dict):
        raise ValueError(f"rope_parameters={given!r} must be a dict with 'rope_type' and 'rope_theta'")
    rope = dict(given)
    legacy = rope.pop("type", None)
    rope.setdefault("rope_type", legacy or "default")
    rope.setdefault("rope_theta", DEFAULT_THETA if rope_theta is None else rope_theta)
    original = rope.get("original_max_position_embeddings")
    if rope["rope_type"] in ("yarn", "longrope") and rope.get("factor") is None and isinstance(original, int) and original > 0:
        rope["factor"] = config.max_position_embeddings / original
    # not beside a factor that is missing, which would follow from it where this form is read again
    if rope["rope_type"] in _LENGTH_RULES and original is None and rope.get("factor") is not None:
        rope["original_max_position_embeddings"] = config.max_position_embeddings
    if config.partial_rotary_factor != 1.0:
        rope.setdefault("partial_rotary_factor", config.partial_rotary_factor)
    return rope


def _check(config, where, rope):
    kind = rope["rope_type"]
    if kind not in ROPE_KEYS:
        raise ValueError(f"{where}: rope_type={kind!r} is unknown{nearest(kind, ROPE_KEYS)}; choose from {list(ROPE_KEYS)}")
    required, optional = ROPE_KEYS[kind]
    known = {"rope_type", "rope_theta", "partial_rotary_factor", *required, *optional}
    for key in required:
        if rope.get(key) is None:
            raise ValueError(f"{where}: rope_type={kind!r} needs {key!r}; it takes {sorted(known)}")
    for key in rope:
        if key not in known:
            raise ValueError(
                f"{where}: key {key!r} has no effect with rope_type={kind!r}{nearest(key, known)}; it takes {sorted(known)}"
            )
    _check_numbers(config, where, rope)


def _check_numbers(config, where, rope):
    for key, value in rope.items():
        if key in ("rope_type", "truncate", "short_factor", "long_factor") or value is None:
            continue
        if not _is_positive(value):
            raise ValueError(f"{where}: {key}={value!r} must be a number greater than zero")
    if not isinstance(rope.get("truncate") or False, bool):
        raise ValueError(f"{where}: truncate={rope['truncate']!r} must be True or False")
    if "factor" in rope and rope["factor"] < 1:
        raise ValueError(f"{where}: factor={rope['factor']} must be at least 1 (it stretches the context)")
    if rope.get("partial_rotary_factor", 1.0) > 1:
        raise ValueError(f"{where}: partial_rotary_factor={rope['partial_rotary_factor']} must lie in (0, 1]")
    if rope["rope_type"] == "yarn":
        fast, slow = (rope.get(key) or default for key, default in (("beta_fast", 32), ("beta_slow", 1)))
        if fast <= slow:
            raise ValueError(f"{where}: beta_fast={fast} must be greater than beta_slow={slow}")
    if rope["rope_type"] == "llama3" and not rope["low_freq_factor"] < rope["high_freq_factor"]:
        raise ValueError(
            f"{where}: low_freq_factor={rope['low_freq_factor']} must be less than high_freq_factor={rope['high_freq_factor']}"
        )
    if rope["rope_type"] == "longrope":
        scales = [key for key in ("short_mscale", "long_mscale", "attention_factor") if rope.get(key) is not None]
        if scales not in ([], ["attention_factor"], ["short_mscale", "long_mscale"]):
            raise ValueError(
                f"{where}: {', '.join(scales)} cannot stand like this: give attention_factor alone, or short_mscale and "
                "long_mscale together"
            )
        dims = int(config.rotary_head_dim * rope.get("partial_rotary_factor", config.partial_rotary_factor)) // 2
        for key in ("short_factor", "long_factor"):
            values = rope[key]
            if not isinstance(values, (list, tuple)) or len(values) != dims or not all(map(_is_positive, values)):
                raise ValueError(
                    f"{where}: {key} must be a list of {dims} numbers greater than zero, one per rotary frequency "
                    f"(half of the rotated width of a head); got {values!r}"
                )


def _is_positive(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < inf
