"""Phi-1.5 and Phi-2: parallel blocks, partial rotation, biases everywhere, the head too."""

from hf_variants.convert.config_map import Always, Both, HeadDim, Key, Same
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import layernorm_keys, rope
from hf_variants.convert.weight_rules import keep, rename

_LAYER = "model.layers.*."

FAMILY = Family(
    model_type="phi",
    config=[
        *layernorm_keys("layer_norm_eps"),
        Same("intermediate_size", "hidden_act"),
        Key("hidden_dropout", "resid_pdrop"),
        Key("embedding_dropout", "embd_pdrop"),
        Always(norm_placement="parallel", mlp_type="plain", mlp_bias=True, lm_head_bias=True),
        Always(attention_bias=True, attention_out_bias=True),
        HeadDim(),
        rope(partial=True),
        Both(
            lambda native: {"qk_norm": "head" if native.qk_layernorm else "none"},
            lambda config: {"qk_layernorm": config.qk_norm == "head"},
        ),
    ],
    weights=[
        *keep("model.embed_tokens.weight", "lm_head.*"),
        rename("model.final_layernorm.*", "model.norm.*"),
        *keep(*(f"{_LAYER}self_attn.{part}_proj.*" for part in "qkv"), _LAYER + "input_layernorm.*"),
        rename(_LAYER + "self_attn.dense.*", _LAYER + "self_attn.o_proj.*"),
        rename(_LAYER + "self_attn.q_layernorm.*", _LAYER + "self_attn.q_norm.*"),
        rename(_LAYER + "self_attn.k_layernorm.*", _LAYER + "self_attn.k_norm.*"),
        rename(_LAYER + "mlp.fc1.*", _LAYER + "mlp.up_proj.*"),
        rename(_LAYER + "mlp.fc2.*", _LAYER + "mlp.down_proj.*"),
    ],
)
