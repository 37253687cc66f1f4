"""StarCoder 2: LayerNorm, a plain feed-forward, one switch for all biases, one window for every layer."""

from hf_variants.convert.config_map import Always, Both, HeadDim, Key, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import layernorm_keys, one_window, rope
from hf_variants.convert.weight_rules import keep, rename

_LAYER = "model.layers.*."

FAMILY = Family(
    model_type="starcoder2",
    config=[
        *layernorm_keys("norm_epsilon"),
        Same("intermediate_size", "hidden_act", "embedding_dropout"),
        Key("hidden_dropout", "residual_dropout"),
        Always(mlp_type="plain"),
        Both(
            lambda native: dict.fromkeys(("attention_bias", "attention_out_bias", "mlp_bias"), native.use_bias),
            lambda config: {"use_bias": config.attention_bias},
        ),
        HeadDim(),
        one_window(),
        rope(),
    ],
    weights=[
        *keep("model.embed_tokens.weight", "model.norm.*", "lm_head.weight"),
        *keep(_LAYER + "self_attn.**", _LAYER + "*_layernorm.*"),
        rename(_LAYER + "mlp.c_fc.*", _LAYER + "mlp.up_proj.*"),
        rename(_LAYER + "mlp.c_proj.*", _LAYER + "mlp.down_proj.*"),
    ],
)
