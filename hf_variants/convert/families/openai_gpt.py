"""GPT: GPT-2's weights with the norms after the sums, and so without a last one; the activation `gelu` means `gelu_new`.

`summary_*` belongs to another head and stays native.
"""

from hf_variants.convert.classic_maps import BLOCK, OURS, fused_conv1d, transposed
from hf_variants.convert.config_map import Always, Both, Key, Same, SpecialTokens
from hf_variants.convert.registry import Family
from hf_variants.convert.weight_rules import keep, rename

# What the native class makes of the four activations that it knows.
_NATIVE_ACTS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}


def _read_act(native):
    if native.afn not in _NATIVE_ACTS:
        raise ValueError(f"openai-gpt with afn={native.afn!r} cannot be converted: choose from {sorted(_NATIVE_ACTS)}")
    return {"hidden_act": _NATIVE_ACTS[native.afn]}


def _write_act(config):
    found = next((name for name, act in _NATIVE_ACTS.items() if act == config.hidden_act), None)
    return {} if found is None else {"afn": found}


FAMILY = Family(
    model_type="openai-gpt",
    config=[
        Same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        Same("initializer_range", "tie_word_embeddings"),
        SpecialTokens(),
        Key("max_position_embeddings", "n_positions"),
        Key("norm_eps", "layer_norm_epsilon"),
        Key("attention_dropout", "attn_pdrop"),
        Key("hidden_dropout", "resid_pdrop"),
        Key("embedding_dropout", "embd_pdrop"),
        Always(norm_type="layernorm", norm_placement="post_ln", mlp_type="plain", mlp_bias=True),
        Always(position_embedding_type="learned", attention_bias=True, attention_out_bias=True),
        Both(lambda native: {"intermediate_size": 4 * native.hidden_size}),
        Both(_read_act, _write_act),
    ],
    weights=[
        *keep("lm_head.weight"),
        rename("transformer.tokens_embed.weight", "model.embed_tokens.weight"),
        rename("transformer.positions_embed.weight", "model.embed_positions.weight"),
        rename(BLOCK + "ln_1.*", OURS + "post_attention_layernorm.*"),
        rename(BLOCK + "ln_2.*", OURS + "post_feedforward_layernorm.*"),
        *fused_conv1d("attn.c_attn"),
        *transposed("attn.c_proj", "self_attn.o_proj"),
        *transposed("mlp.c_fc", "mlp.up_proj"),
        *transposed("mlp.c_proj", "mlp.down_proj"),
    ],
)
