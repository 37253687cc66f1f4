"""GTE: Jina Embeddings v3 with gated feed-forwards, whose last projection alone has a bias; token types, or none.

Its pooler belongs to the classifier of rows alone, so it is that classifier's hidden layer here.
"""

from hf_variants.convert.config_map import Always, Both, Same
from hf_variants.convert.encoder_maps import (
    BERT_KEYS,
    DROPPED_CLASSIFIER,
    LINEAR_CLASSIFIER,
    OURS,
    POST_LN,
    STACK,
)
from hf_variants.convert.families.jina_embeddings_v3 import TABLES
from hf_variants.convert.registry import Family
from hf_variants.convert.shared_maps import rope
from hf_variants.convert.weight_rules import only_if, rename

_BLOCK = "gte.layers.*."
_NORMS = {"post_attention_layernorm": "post_attention_layernorm", "post_mlp_layernorm": "post_feedforward_layernorm"}

FAMILY = Family(
    model_type="gte",
    config=[
        *BERT_KEYS,
        DROPPED_CLASSIFIER,
        POST_LN,
        Same("max_position_embeddings"),
        Always(position_embedding_type="rope", mlp_type="gated", mlp_bias=False, mlp_out_bias=True),
        Always(task_head="dense", classifier_act="tanh", lm_head_act="gelu"),
        Both(lambda native: {"activation_dropout": native.hidden_dropout_prob}),
        rope(),
    ],
    weights=[
        *(rename(f"gte.embeddings.{native}.*", f"model.{ours}.*") for native, ours in TABLES.items()),
        rename(_BLOCK + "self_attn.**", OURS + "self_attn.**"),
        rename(_BLOCK + "mlp.**", OURS + "mlp.**"),
        *(rename(f"{_BLOCK}{native}.*", f"{OURS}{ours}.*") for native, ours in _NORMS.items()),
    ],
    prefix="gte.",
    heads={
        "base": STACK,
        "masked_lm": [
            rename("lm_head.dense.*", "transform.dense.*"),
            rename("lm_head.layer_norm.*", "transform.norm.*"),
            rename("lm_head.decoder.bias", "lm_head.bias"),
            *only_if(lambda config: not config.tie_word_embeddings, rename("lm_head.decoder.weight", "lm_head.weight")),
        ],
        "sequence_classification": [
            rename("gte.pooler.dense.*", "score.dense.*"),
            rename("classifier.*", "score.out_proj.*"),
        ],
        "token_classification": LINEAR_CLASSIFIER,
    },
    other_heads=("gte.pooler.",),
)
