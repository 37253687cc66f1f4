"""RoFormer: BERT with RoPE in neighbouring pairs, tables of a width of their own, and a classifier with a hidden layer.

Notable here: natively the sines and cosines of RoPE are a table among the weights, and it fails beyond the rows of that table,
`max_position_embeddings`; ours computes them, and goes on.
"""

from hf_variants.convert.config_map import Always, Both, Refuse, Same
from hf_variants.convert.encoder_maps import (
    BERT_KEYS,
    DENSE_CLASSIFIER,
    LINEAR_CLASSIFIER,
    POST_LN,
    SPANS,
    STACK,
    bert_embeddings,
    bert_language_head,
    bert_layers,
    no_decoder,
)
from hf_variants.convert.registry import Family
from hf_variants.convert.stored_sinusoids import DropSinusoids
from hf_variants.convert.weight_rules import rearrange, rename

_ENCODER = "roformer.encoder."

FAMILY = Family(
    model_type="roformer",
    config=[
        *BERT_KEYS,
        POST_LN,
        Same("use_cache", "max_position_embeddings", "embedding_size"),
        *no_decoder(),
        Refuse("rotary_value", lambda native: native.rotary_value, "no toggle means rotated values; set it to False"),
        Always(position_embedding_type="rope", rope_interleaved=True),
        Always(rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        Both(lambda native: {"lm_head_act": native.hidden_act, "classifier_act": native.hidden_act}),
        Both(lambda native: dict.fromkeys(("classifier_dropout", "token_classifier_dropout"), native.hidden_dropout_prob)),
        Always(task_head="dropped_dense"),
    ],
    weights=[
        rearrange(
            (f"{_ENCODER}layer.0.intermediate.dense.bias", f"{_ENCODER}embed_positions.weight"),
            "model.layers.0.mlp.up_proj.bias",
            DropSinusoids(lambda config: (config.max_position_embeddings, config.head_dim)),
        ),
        *bert_embeddings("roformer."),
        *bert_layers(f"{_ENCODER}layer.*."),
        rename("roformer.embeddings_project.*", "model.embed_proj.*"),
    ],
    prefix="roformer.",
    heads={
        "base": STACK,
        "masked_lm": bert_language_head(),
        "sequence_classification": DENSE_CLASSIFIER,
        "token_classification": LINEAR_CLASSIFIER,
        "question_answering": SPANS,
    },
)
