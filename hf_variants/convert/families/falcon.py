"""Falcon: three block layouts (7B and 11B parallel under one norm, 40B under two, RW sequential), q, k, v fused by group.

Without ALiBi `attention_dropout` never reaches the scores natively, so it stays native. With it the bias is the one of the
default backend, `sdpa`: slopes and heights in bfloat16, scaled with the scores (`eager` adds it twice).
"""

from hf_variants.convert.classic_maps import fused_qkv
from hf_variants.convert.config_map import Always, Both, Key, Refuse, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS_WITHOUT_DROPOUT, NO_POSITIONS, read_flat_rope, written_flat_rope
from hf_variants.convert.weight_rules import keep, only_if, rename

_BLOCK, _OURS = "transformer.h.*.", "model.layers.*."
_BIASES = ("attention_bias", "attention_out_bias", "mlp_bias")


def _read_layout(native):
    if native.new_decoder_architecture:
        one = native.num_ln_in_parallel_attn == 1
        placement, kv_heads = "parallel" if one else "parallel_two_norms", native.num_kv_heads
    else:
        placement = "parallel" if native.parallel_attn else "pre"
        kv_heads = 1 if native.multi_query else native.num_attention_heads
    return {"norm_placement": placement, "num_key_value_heads": kv_heads}


def _write_layout(config):
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    old = config.norm_placement == "pre" or (config.norm_placement == "parallel" and kv_heads in (1, heads))
    if old:
        written = {"multi_query": kv_heads == 1, "parallel_attn": config.norm_placement == "parallel"}
        return {"new_decoder_architecture": False, "num_kv_heads": heads, **written}
    norms = 1 if config.norm_placement == "parallel" else 2
    return {"new_decoder_architecture": True, "num_kv_heads": kv_heads, "num_ln_in_parallel_attn": norms}


_ALIBI = {**NO_POSITIONS, "position_embedding_type": "alibi", "alibi_scaled_bf16": True}


def _read_positions(native):
    if native.alibi:
        return {**_ALIBI, "attention_dropout": native.attention_dropout}
    return read_flat_rope(native)


def _write_positions(config):
    alibi = config.position_embedding_type == "alibi"
    dropout = {"attention_dropout": config.attention_dropout} if alibi else {}
    return {"alibi": alibi, "rope_parameters": written_flat_rope(config), **dropout}


def _has_two_norms(config):
    return config.norm_placement == "parallel_two_norms"


def _fails(native):
    if native.new_decoder_architecture:
        return not native.parallel_attn
    few = not native.multi_query and native.num_kv_heads != native.num_attention_heads
    return few or (native.num_ln_in_parallel_attn == 2 and native.parallel_attn)


FAMILY = Family(
    model_type="falcon",
    config=[
        *COMMON_KEYS_WITHOUT_DROPOUT,
        Same("max_position_embeddings", "hidden_dropout"),
        Key("norm_eps", "layer_norm_epsilon"),
        Key("hidden_act", "activation"),
        Key("intermediate_size", "ffn_hidden_size"),
        Always(norm_type="layernorm", mlp_type="plain"),
        Both(lambda native: dict.fromkeys(_BIASES, native.bias), lambda config: {"bias": config.mlp_bias}),
        Refuse(
            "new_decoder_architecture",
            _fails,
            "natively this combination of parallel_attn, multi_query, num_kv_heads and num_ln_in_parallel_attn fails",
        ),
        Refuse(
            "attention_dropout",
            lambda native: not native.parallel_attn and native.attention_dropout != native.hidden_dropout,
            "in sequential blocks it acts on the branch in place of hidden_dropout; set both to one value",
        ),
        Both(_read_positions, _write_positions),
        Both(_read_layout, _write_layout),
    ],
    weights=[
        *keep("lm_head.weight"),
        rename("transformer.word_embeddings.weight", "model.embed_tokens.weight"),
        rename("transformer.ln_f.*", "model.norm.*"),
        fused_qkv(_BLOCK + "self_attention.query_key_value.*"),
        rename(_BLOCK + "self_attention.dense.*", _OURS + "self_attn.o_proj.*"),
        rename(_BLOCK + "mlp.dense_h_to_4h.*", _OURS + "mlp.up_proj.*"),
        rename(_BLOCK + "mlp.dense_4h_to_h.*", _OURS + "mlp.down_proj.*"),
        *only_if(
            _has_two_norms,
            rename(_BLOCK + "ln_attn.*", _OURS + "input_layernorm.*"),
            rename(_BLOCK + "ln_mlp.*", _OURS + "post_attention_layernorm.*"),
        ),
        *only_if(lambda config: not _has_two_norms(config), rename(_BLOCK + "*_layernorm.*", _OURS + "*_layernorm.*")),
    ],
)
