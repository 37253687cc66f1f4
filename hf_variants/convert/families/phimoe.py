"""Phi-3.5-MoE: LayerNorm, experts in every layer chosen by SparseMixer, LongRoPE of one list of factors.

Beyond the original length the native class switches the scale of LongRoPE (`short_mscale`, `long_mscale`) but goes on turning
by `short_factor`; so does the conversion, which keeps `long_factor` for the way back. Two experts are chosen whatever
`num_experts_per_tok` says.
"""

from hf_variants.convert.config_map import Both, HeadDim, Key, Refuse, Same, TrainingOnly
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import (
    LAYERNORM_WEIGHTS,
    all_biases,
    aux_loss,
    every_layer_sparse,
    layernorm_keys,
    live_rope,
    one_window,
    written_flat_rope,
)
from hf_variants.convert.weight_rules import keep, rename

_MSCALES = ("short_mscale", "long_mscale")


def _read_rope(native):
    given = native.rope_parameters
    found = live_rope(given)
    if given["rope_type"] == "longrope":
        found.pop("attention_factor", None)
        found["long_factor"] = list(given["short_factor"])
    return {"rope_parameters": found}


def _is_read(native):
    """Whether natively the rule means what its keys say: any but these two would need two scales of its own."""
    given = native.rope_parameters
    named = all(given.get(key) is not None for key in (*_MSCALES, "original_max_position_embeddings"))
    return given["rope_type"] == "default" or (given["rope_type"] == "longrope" and named)


FAMILY = Family(
    model_type="phimoe",
    config=[
        *layernorm_keys("rms_norm_eps"),
        Same("hidden_act", "lm_head_bias"),
        HeadDim(),
        all_biases(),
        one_window(),
        Refuse(
            "rope_parameters",
            lambda native: not _is_read(native),
            "natively every rule but 'default' is scaled by short_mscale and long_mscale around "
            "original_max_position_embeddings, which ours has for 'longrope' alone; use 'longrope' with these three keys, or "
            "'default'",
        ),
        Both(_read_rope, lambda config: {"rope_parameters": written_flat_rope(config)}),
        every_layer_sparse(),
        Both(lambda native: {"router_scoring": "sparsemixer", "num_experts_per_tok": 2, "norm_topk_prob": False}),
        Key("sparsemixer_jitter_eps", "router_jitter_noise"),
        aux_loss(),
        TrainingOnly("input_jitter_noise", "multiplies the inputs of router and experts by noise"),
    ],
    weights=[
        rename("model.layers.*.mlp.router.weight", "model.layers.*.mlp.gate.weight"),
        *LAYERNORM_WEIGHTS,
        *keep("lm_head.bias"),
    ],
)
