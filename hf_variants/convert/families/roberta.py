"""RoBERTa: BERT with positions counted over the ids that are no pads, and a classifier with a hidden layer."""

from hf_variants.convert.encoder_maps import POST_LN, ROBERTA_KEYS, bert_weights, roberta_heads
from hf_variants.convert.registry import Family

FAMILY = Family(
    model_type="roberta",
    config=[*ROBERTA_KEYS, POST_LN],
    weights=bert_weights("roberta."),
    prefix="roberta.",
    heads=roberta_heads(),
    other_heads=("roberta.pooler.",),
)
