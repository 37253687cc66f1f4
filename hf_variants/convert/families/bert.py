"""BERT: the post-LN encoder with learned positions and token types, a pooler, and a masked-language head with a transform."""

from hf_variants.convert.encoder_maps import BERT_HEAD_KEYS, DROPPED_CLASSIFIER, POST_LN, bert_heads, bert_weights
from hf_variants.convert.registry import Family

FAMILY = Family(
    model_type="bert",
    config=[*BERT_HEAD_KEYS, DROPPED_CLASSIFIER, POST_LN],
    weights=bert_weights("bert."),
    prefix="bert.",
    heads=bert_heads(),
    other_heads=("bert.pooler.", "cls.seq_relationship."),
)
