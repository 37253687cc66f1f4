"""CTRL: sinusoids behind scaled embeddings, LayerNorm of epsilon 1e-6, biases everywhere, a plain ReLU feed-forward.

Attention is never dropped natively. Token types, which are looked up in the table of tokens, are not converted.
"""

from hf_variants.convert.classic_maps import BLOCK, OURS
from hf_variants.convert.config_map import Always, Both, Key, Refuse
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import COMMON_KEYS_WITHOUT_DROPOUT
from hf_variants.convert.weight_rules import keep, rename

_ATTENTION = BLOCK + "multi_head_attention."

FAMILY = Family(
    model_type="ctrl",
    config=[
        *COMMON_KEYS_WITHOUT_DROPOUT,
        Key("max_position_embeddings", "n_positions"),
        Key("intermediate_size", "dff"),
        Key("hidden_dropout", "resid_pdrop"),
        Key("embedding_dropout", "embd_pdrop"),
        Always(position_embedding_type="sinusoidal_concat", norm_type="layernorm", norm_eps=1e-6),
        Always(mlp_type="plain", hidden_act="relu", mlp_bias=True, lm_head_bias=True),
        Always(attention_bias=True, attention_out_bias=True),
        Both(lambda native: {"embedding_multiplier": native.hidden_size**0.5}),
        Refuse(
            "layer_norm_epsilon",
            lambda native: native.layer_norm_epsilon != 1e-6,
            "natively it acts in the last norm alone, the others keep 1e-6; set it to 1e-6",
        ),
    ],
    weights=[
        *keep("lm_head.*"),
        rename("transformer.w.weight", "model.embed_tokens.weight"),
        rename("transformer.layernorm.*", "model.norm.*"),
        rename(BLOCK + "layernorm1.*", OURS + "input_layernorm.*"),
        rename(BLOCK + "layernorm2.*", OURS + "post_attention_layernorm.*"),
        *(rename(f"{_ATTENTION}W{part}.*", f"{OURS}self_attn.{part}_proj.*") for part in "qkv"),
        rename(_ATTENTION + "dense.*", OURS + "self_attn.o_proj.*"),
        rename(BLOCK + "ffn.0.*", OURS + "mlp.up_proj.*"),
        rename(BLOCK + "ffn.2.*", OURS + "mlp.down_proj.*"),
    ],
)
