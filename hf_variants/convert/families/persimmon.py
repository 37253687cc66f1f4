"""Persimmon: LayerNorm of q and k with biases, partial rotation, q, k, v fused per head, squared ReLU."""

from hf_variants.convert.classic_maps import fused_qkv
from hf_variants.convert.config_map import Always, Both, Key, Same, TrainingOnly
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS, FROZEN_PAD, rope
from hf_variants.convert.weight_rules import keep, rename

_LAYER = "model.layers.*."

FAMILY = Family(
    model_type="persimmon",
    config=[
        *COMMON_KEYS,
        FROZEN_PAD,
        Same("max_position_embeddings", "intermediate_size", "hidden_act"),
        Key("norm_eps", "layer_norm_eps"),
        Always(norm_type="layernorm", mlp_type="plain", mlp_bias=True, attention_bias=True, attention_out_bias=True),
        rope(partial=True),
        Both(
            lambda native: {"qk_norm": "head" if native.qk_layernorm else "none"},
            lambda config: {"qk_layernorm": config.qk_norm == "head"},
        ),
        TrainingOnly("hidden_dropout", "drops the output of the feed-forward"),
    ],
    weights=[
        *keep("model.embed_tokens.weight", "lm_head.weight", _LAYER + "*_layernorm.*"),
        rename("model.final_layernorm.*", "model.norm.*"),
        fused_qkv(_LAYER + "self_attn.query_key_value.*"),
        rename(_LAYER + "self_attn.dense.*", _LAYER + "self_attn.o_proj.*"),
        rename(_LAYER + "self_attn.q_layernorm.*", _LAYER + "self_attn.q_norm.*"),
        rename(_LAYER + "self_attn.k_layernorm.*", _LAYER + "self_attn.k_norm.*"),
        rename(_LAYER + "mlp.dense_h_to_4h.*", _LAYER + "mlp.up_proj.*"),
        rename(_LAYER + "mlp.dense_4h_to_h.*", _LAYER + "mlp.down_proj.*"),
    ],
)
