"""ELECTRA: BERT with tables of a width of their own, projected behind their norm; the generator's head hands on that width.

The discriminator's head of replaced tokens is another head; its stack converts alone.
"""

from hf_variants.convert.config_map import Always, Same
from hf_variants.convert.encoder_maps import (
    BERT_KEYS,
    DENSE_CLASSIFIER,
    DROPPED_CLASSIFIER,
    LINEAR_CLASSIFIER,
    POST_LN,
    SPANS,
    STACK,
    bert_embeddings,
    bert_layers,
    no_decoder,
)
from hf_variants.convert.registry import Family
from hf_variants.convert.weight_rules import only_if, rename

FAMILY = Family(
    model_type="electra",
    config=[
        *BERT_KEYS,
        POST_LN,
        DROPPED_CLASSIFIER,
        Same("use_cache", "max_position_embeddings", "embedding_size"),
        *no_decoder(),
        Always(lm_head_act="gelu", task_head="dropped_dense", classifier_act="gelu"),
    ],
    weights=[
        *bert_embeddings("electra."),
        *bert_layers("electra.encoder.layer.*."),
        rename("electra.embeddings_project.*", "model.embed_proj.*"),
    ],
    prefix="electra.",
    heads={
        "base": STACK,
        "masked_lm": [
            rename("generator_predictions.dense.*", "transform.dense.*"),
            rename("generator_predictions.LayerNorm.*", "transform.norm.*"),
            rename("generator_lm_head.bias", "lm_head.bias"),
            *only_if(lambda config: not config.tie_word_embeddings, rename("generator_lm_head.weight", "lm_head.weight")),
        ],
        "sequence_classification": DENSE_CLASSIFIER,
        "token_classification": LINEAR_CLASSIFIER,
        "question_answering": SPANS,
    },
    other_heads=("discriminator_predictions.", "generator_predictions.", "generator_lm_head."),
)
