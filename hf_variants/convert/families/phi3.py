"""Phi-3: Llama with fused projections, partial rotation, LongRoPE and one window for every layer.

`embd_pdrop` is never applied natively, so it stays native.
"""

from hf_variants.convert.config_map import Both, HeadDim, Key, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import EMBEDDINGS, MODERN_KEYS, one_window, rope
from hf_variants.convert.tensor_ops import Split, gate_and_up_rows, head_rows
from hf_variants.convert.weight_rules import keep, rearrange

_ATTENTION, _MLP = "model.layers.*.self_attn.", "model.layers.*.mlp."


def _original_length(config):
    """The copy of the original length at top level, which natively overrides the one in the RoPE dict."""
    length = (config.rope_parameters or {}).get("original_max_position_embeddings")
    return {} if length is None else {"original_max_position_embeddings": length}


FAMILY = Family(
    model_type="phi3",
    config=[
        *MODERN_KEYS,
        Same("intermediate_size", "hidden_act"),
        Key("hidden_dropout", "resid_pdrop"),
        HeadDim(),
        one_window(),
        rope(partial=True),
        Both(writer=_original_length),
    ],
    weights=[
        *EMBEDDINGS,
        *keep(_ATTENTION + "o_proj.weight", _MLP + "down_proj.weight", "model.layers.*.*_layernorm.weight"),
        rearrange(
            _ATTENTION + "qkv_proj.weight",
            tuple(_ATTENTION + f"{part}_proj.weight" for part in "qkv"),
            Split(head_rows),
        ),
        rearrange(
            _MLP + "gate_up_proj.weight",
            tuple(_MLP + f"{part}_proj.weight" for part in ("gate", "up")),
            Split(gate_and_up_rows),
        ),
    ],
)
