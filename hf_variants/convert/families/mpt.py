"""MPT: ALiBi, LayerNorm without bias, no biases at all.

Of `attn_config` only `clip_qkv`, `softmax_scale` and `attn_pdrop` are read natively; the rest of it, and every key that
speaks of another position scheme, norm or width, stays native.
"""

from hf_variants.convert.config_map import Always, Both, Key
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS_WITHOUT_DROPOUT
from hf_variants.convert.tensor_ops import Split, head_rows
from hf_variants.convert.weight_rules import keep, rearrange, rename

_BLOCK, _OURS = "transformer.blocks.*.", "model.layers.*."


def _read_attention(native):
    attention = native.attn_config
    dropouts = dict.fromkeys(("attention_dropout", "hidden_dropout"), attention.attn_pdrop)
    return {"attention_multiplier": attention.softmax_scale, "clip_qkv": attention.clip_qkv or None, **dropouts}


def _write_attention(config):
    scale, clip = (None if value is None else float(value) for value in (config.attention_multiplier, config.clip_qkv))
    # natively an int, which takes 0 but not 0.0
    dropout = 0 if config.attention_dropout == 0 else config.attention_dropout
    return {"attn_config": {"softmax_scale": scale, "clip_qkv": clip, "attn_pdrop": dropout}}


FAMILY = Family(
    model_type="mpt",
    config=[
        *COMMON_KEYS_WITHOUT_DROPOUT,
        Key("max_position_embeddings", "max_seq_len"),
        Key("norm_eps", "layer_norm_epsilon"),
        Always(position_embedding_type="alibi", norm_type="layernorm", norm_bias=False, mlp_type="plain", hidden_act="gelu"),
        Both(lambda native: {"intermediate_size": 4 * native.hidden_size}),
        Both(_read_attention, _write_attention),
    ],
    weights=[
        *keep("lm_head.weight"),
        rename("transformer.wte.weight", "model.embed_tokens.weight"),
        rename("transformer.norm_f.weight", "model.norm.weight"),
        rename(_BLOCK + "norm_1.weight", _OURS + "input_layernorm.weight"),
        rename(_BLOCK + "norm_2.weight", _OURS + "post_attention_layernorm.weight"),
        rearrange(
            _BLOCK + "attn.Wqkv.weight",
            tuple(f"{_OURS}self_attn.{part}_proj.weight" for part in "qkv"),
            Split(head_rows),
        ),
        rename(_BLOCK + "attn.out_proj.weight", _OURS + "self_attn.o_proj.weight"),
        rename(_BLOCK + "ffn.up_proj.weight", _OURS + "mlp.up_proj.weight"),
        rename(_BLOCK + "ffn.down_proj.weight", _OURS + "mlp.down_proj.weight"),
    ],
)
