"""XGLM: sinusoids in halves two rows further on, scaled embeddings, LayerNorm with a fixed epsilon of 1e-5."""

from hf_variants.convert.classic_maps import layerdrop, no_cross_attention
from hf_variants.convert.config_map import Always, Both, Key, Refuse, Same, SpecialTokens
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import FROZEN_PAD, scale_embedding_switch
from hf_variants.convert.weight_rules import keep, rename

_LAYER = "model.layers.*."

FAMILY = Family(
    model_type="xglm",
    config=[
        Same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"),
        Same("tie_word_embeddings", "use_cache", "attention_dropout", "activation_dropout"),
        SpecialTokens(),
        FROZEN_PAD,
        Key("initializer_range", "init_std"),
        Key("intermediate_size", "ffn_dim"),
        Key("hidden_act", "activation_function"),
        Both(
            lambda native: dict.fromkeys(("hidden_dropout", "embedding_dropout"), native.dropout),
            lambda config: {"dropout": config.hidden_dropout},
        ),
        Always(position_embedding_type="sinusoidal_halves", position_embedding_offset=2),
        Always(norm_type="layernorm", norm_eps=1e-5, mlp_type="plain"),
        Always(mlp_bias=True, attention_bias=True, attention_out_bias=True),
        scale_embedding_switch(),
        no_cross_attention(),
        Refuse(
            "pad_token_id",
            lambda native: (native.pad_token_id or 0) > 1,
            "natively the row of positions with the number of the pad is zeroed, which from 2 on is a real position; set it "
            "to 0, 1 or None",
        ),
        layerdrop(),
    ],
    weights=[
        *keep("lm_head.weight", "model.embed_tokens.weight"),
        rename("model.layer_norm.*", "model.norm.*"),
        rename(_LAYER + "self_attn_layer_norm.*", _LAYER + "input_layernorm.*"),
        rename(_LAYER + "final_layer_norm.*", _LAYER + "post_attention_layernorm.*"),
        *keep(*(f"{_LAYER}self_attn.{part}_proj.*" for part in "qkv")),
        rename(_LAYER + "self_attn.out_proj.*", _LAYER + "self_attn.o_proj.*"),
        rename(_LAYER + "fc1.*", _LAYER + "mlp.up_proj.*"),
        rename(_LAYER + "fc2.*", _LAYER + "mlp.down_proj.*"),
    ],
)
