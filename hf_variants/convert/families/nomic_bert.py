"""Nomic BERT: BERT's topology and token types with RoPE and SwiGLU, and no biases but those of the norms and heads.

Its pooler belongs to the classifier of rows alone, so it is that classifier's hidden layer here.
"""

from hf_variants.convert.config_map import Always, Both, HeadDim, Key, Same
from hf_variants.convert.encoder_maps import (
    LINEAR_CLASSIFIER,
    OURS,
    POST_LN,
    STACK,
    UNTIED_KEYS,
    bert_language_head,
    dropouts,
)
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import rope
from hf_variants.convert.weight_rules import rename

_BLOCK = "nomic_bert.layers.*."
_TABLES = {"word_embeddings": "embed_tokens", "token_type_embeddings": "embed_types", "LayerNorm": "embed_norm"}

FAMILY = Family(
    model_type="nomic_bert",
    config=[
        *UNTIED_KEYS,
        # no declared key, so it is written only where it says something
        Both(
            lambda native: {"tie_word_embeddings": native.tie_word_embeddings},
            lambda config: {} if config.tie_word_embeddings else {"tie_word_embeddings": False},
        ),
        Same("intermediate_size", "hidden_act", "type_vocab_size", "max_position_embeddings", "classifier_dropout"),
        Key("norm_eps", "layer_norm_eps"),
        *dropouts(),
        HeadDim(declared=True),
        Both(lambda native: {"lm_head_act": native.hidden_act}),
        Always(norm_type="layernorm", mlp_type="gated", lm_head_bias=True, task_head="dense", classifier_act="tanh"),
        POST_LN,
        rope(),
    ],
    weights=[
        *(rename(f"nomic_bert.embeddings.{native}.*", f"model.{ours}.*") for native, ours in _TABLES.items()),
        rename(_BLOCK + "self_attn.*.weight", OURS + "self_attn.*.weight"),
        rename(_BLOCK + "mlp.*.weight", OURS + "mlp.*.weight"),
        rename(_BLOCK + "post_attention_layernorm.*", OURS + "post_attention_layernorm.*"),
        rename(_BLOCK + "post_mlp_layernorm.*", OURS + "post_feedforward_layernorm.*"),
    ],
    prefix="nomic_bert.",
    heads={
        "base": STACK,
        "masked_lm": bert_language_head("layer_norm"),
        "sequence_classification": [
            rename("nomic_bert.pooler.dense.*", "score.dense.*"),
            rename("classifier.*", "score.out_proj.*"),
        ],
        "token_classification": LINEAR_CLASSIFIER,
    },
)
