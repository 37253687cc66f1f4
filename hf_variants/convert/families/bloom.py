"""BLOOM: ALiBi, a norm after the embedding, q, k, v fused in rows per head, a residual that may follow the norm.

Its activation is the tanh form of GELU with a constant of eight digits, which transformers also has as `gelu_fast`.
Natively there is no context length; published configs carry `seq_length`, which stays native.
"""

from hf_variants.convert.config_map import Always, Both, Key, Refuse, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS
from hf_variants.convert.tensor_ops import SplitPerHead
from hf_variants.convert.weight_rules import keep, rearrange, rename

_BLOCK, _OURS = "transformer.h.*.", "model.layers.*."


def _read_placement(native):
    normed = native.apply_residual_connection_post_layernorm
    return {"norm_placement": "pre_normed_residual" if normed else "pre"}


def _write_placement(config):
    return {"apply_residual_connection_post_layernorm": config.norm_placement == "pre_normed_residual"}


FAMILY = Family(
    model_type="bloom",
    config=[
        *COMMON_KEYS,
        Key("norm_eps", "layer_norm_epsilon"),
        Same("hidden_dropout"),
        Always(position_embedding_type="alibi", norm_type="layernorm", embedding_norm=True, hidden_act="gelu_fast"),
        Always(mlp_type="plain", mlp_bias=True, attention_bias=True, attention_out_bias=True),
        Both(lambda native: {"intermediate_size": 4 * native.hidden_size}),
        Both(_read_placement, _write_placement),
        Refuse(
            "slow_but_exact",
            lambda native: native.slow_but_exact and native.pretraining_tp > 1,
            "with pretraining_tp > 1 it drops the biases of the attention output and of the second feed-forward "
            "projection; set slow_but_exact=False",
        ),
    ],
    weights=[
        *keep("lm_head.weight"),
        rename("transformer.word_embeddings.weight", "model.embed_tokens.weight"),
        rename("transformer.word_embeddings_layernorm.*", "model.embed_norm.*"),
        rename("transformer.ln_f.*", "model.norm.*"),
        rename(_BLOCK + "*_layernorm.*", _OURS + "*_layernorm.*"),
        rearrange(
            _BLOCK + "self_attention.query_key_value.*",
            tuple(f"{_OURS}self_attn.{part}_proj.*" for part in "qkv"),
            SplitPerHead(),
        ),
        rename(_BLOCK + "self_attention.dense.*", _OURS + "self_attn.o_proj.*"),
        rename(_BLOCK + "mlp.dense_h_to_4h.*", _OURS + "mlp.up_proj.*"),
        rename(_BLOCK + "mlp.dense_4h_to_h.*", _OURS + "mlp.down_proj.*"),
    ],
)
