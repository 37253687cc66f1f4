"""GPT-2: learned positions, LayerNorm, biases everywhere, linear weights stored [in, out] with q, k, v fused.

`summary_*` belongs to another head and `reorder_and_upcast_attn` changes rounding in half precision alone; both stay
native.
"""

from hf_variants.convert.config_map import Always, Both, Key, Refuse, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS_WITHOUT_DROPOUT
from hf_variants.convert.tensor_ops import Split, Transpose, head_rows
from hf_variants.convert.weight_rules import keep, rearrange, rename

_BLOCK, _OURS = "transformer.h.*.", "model.layers.*."


def _transposed(native, ours):
    return [
        rearrange(f"{_BLOCK}{native}.weight", f"{_OURS}{ours}.weight", Transpose()),
        rename(f"{_BLOCK}{native}.bias", f"{_OURS}{ours}.bias"),
    ]


def _read_scale(native):
    return {"attention_multiplier": None if native.scale_attn_weights else 1.0}


def _read_width(native):
    return {"intermediate_size": native.n_inner if native.n_inner is not None else 4 * native.n_embd}


def _write_width(config):
    return {"n_inner": None if config.intermediate_size == 4 * config.hidden_size else config.intermediate_size}


_QKV = tuple(f"{_OURS}self_attn.{part}_proj." for part in "qkv")

FAMILY = Family(
    model_type="gpt2",
    config=[
        *COMMON_KEYS_WITHOUT_DROPOUT,
        Key("max_position_embeddings", "n_positions"),
        Key("norm_eps", "layer_norm_epsilon"),
        Key("hidden_act", "activation_function"),
        Key("attention_dropout", "attn_pdrop"),
        Key("hidden_dropout", "resid_pdrop"),
        Key("embedding_dropout", "embd_pdrop"),
        Same("scale_attn_by_inverse_layer_idx"),
        Always(position_embedding_type="learned", norm_type="layernorm", mlp_type="plain", mlp_bias=True),
        Always(attention_bias=True, attention_out_bias=True),
        Both(_read_scale, lambda config: {"scale_attn_weights": config.attention_multiplier is None}),
        Both(_read_width, _write_width),
        Refuse(
            "add_cross_attention",
            lambda native: native.add_cross_attention,
            "a decoder alone has nothing to attend to",
        ),
    ],
    weights=[
        *keep("lm_head.weight"),
        rename("transformer.wte.weight", "model.embed_tokens.weight"),
        rename("transformer.wpe.weight", "model.embed_positions.weight"),
        rename("transformer.ln_f.*", "model.norm.*"),
        rename(_BLOCK + "ln_1.*", _OURS + "input_layernorm.*"),
        rename(_BLOCK + "ln_2.*", _OURS + "post_attention_layernorm.*"),
        rearrange(_BLOCK + "attn.c_attn.weight", tuple(name + "weight" for name in _QKV), Transpose(), Split(head_rows)),
        rearrange(_BLOCK + "attn.c_attn.bias", tuple(name + "bias" for name in _QKV), Split(head_rows)),
        *_transposed("attn.c_proj", "self_attn.o_proj"),
        *_transposed("mlp.c_fc", "mlp.up_proj"),
        *_transposed("mlp.c_proj", "mlp.down_proj"),
    ],
)
