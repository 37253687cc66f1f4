"""GPT-Neo: learned positions, windows on every second layer, scores that are not scaled."""

from hf_variants.convert.classic_maps import BLOCK, GPT_WEIGHTS, OURS, width
from hf_variants.convert.config_map import Always, Both, Key, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS
from hf_variants.convert.weight_rules import rename

_KINDS = {"global": "full_attention", "local": "sliding_attention"}


def _read_windows(native):
    kinds = [_KINDS[kind] for kind in native.attention_layers]
    return {"layer_types": kinds, "sliding_window": native.window_size if "sliding_attention" in kinds else None}


def _write_windows(config):
    named = {ours: native for native, ours in _KINDS.items()}
    unknown = [kind for kind in config.layer_types if kind not in named]
    written = {"attention_types": [[[named.get(kind, "global")], 1] for kind in config.layer_types]}
    return written if unknown or config.sliding_window is None else {**written, "window_size": config.sliding_window}


_ATTENTION = BLOCK + "attn.attention."

FAMILY = Family(
    model_type="gpt_neo",
    config=[
        *COMMON_KEYS,
        Same("max_position_embeddings"),
        Key("norm_eps", "layer_norm_epsilon"),
        Key("hidden_act", "activation_function"),
        Key("hidden_dropout", "resid_dropout"),
        Key("embedding_dropout", "embed_dropout"),
        Always(position_embedding_type="learned", norm_type="layernorm", mlp_type="plain", mlp_bias=True),
        Always(attention_multiplier=1.0, attention_bias=False, attention_out_bias=True),
        width("intermediate_size"),
        Both(_read_windows, _write_windows),
    ],
    weights=[
        *GPT_WEIGHTS,
        rename("transformer.wpe.weight", "model.embed_positions.weight"),
        rename(BLOCK + "ln_2.*", OURS + "post_attention_layernorm.*"),
        *(rename(f"{_ATTENTION}{part}_proj.weight", f"{OURS}self_attn.{part}_proj.weight") for part in "qkv"),
        rename(_ATTENTION + "out_proj.*", OURS + "self_attn.o_proj.*"),
        rename(BLOCK + "mlp.c_fc.*", OURS + "mlp.up_proj.*"),
        rename(BLOCK + "mlp.c_proj.*", OURS + "mlp.down_proj.*"),
    ],
)
