"""Ministral 3: Mistral whose queries grow with their position, by a rate and a length that stand among the RoPE keys."""

from hf_variants.convert.config_map import Both, HeadDim, Refuse, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import LLAMA_WEIGHTS, MODERN_KEYS, one_window, read_flat_rope, written_flat_rope

_RATE, _LENGTH = "llama_4_scaling_beta", "original_max_position_embeddings"


def read_temperature(native):
    """Keywords for queries that grow with their position."""
    rate, length = (native.rope_parameters[key] for key in (_RATE, _LENGTH))
    return {"attn_temperature_tuning": True, "attn_scale": rate, "floor_scale": length} if rate else {}


def write_tempered_rope(config):
    """A flat native `rope_parameters` that says how queries grow too."""
    rope = written_flat_rope(config)
    rate, length = (config.attn_scale, config.floor_scale) if config.attn_temperature_tuning else (0.0, None)
    length = length or rope.get(_LENGTH) or config.max_position_embeddings
    return {"rope_parameters": {**rope, _LENGTH: length, _RATE: rate}}


NEEDS_TEMPERATURE = Refuse(
    "rope_parameters",
    lambda native: any(native.rope_parameters.get(key) is None for key in (_RATE, _LENGTH)),
    f"natively it fails without {_RATE} and {_LENGTH}; set both, {_RATE} to 0 for queries as they are",
)

FAMILY = Family(
    model_type="ministral3",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        HeadDim(declared=True),
        one_window(),
        NEEDS_TEMPERATURE,
        Both(lambda native: {**read_flat_rope(native), **read_temperature(native)}, write_tempered_rope),
    ],
    weights=LLAMA_WEIGHTS,
)
