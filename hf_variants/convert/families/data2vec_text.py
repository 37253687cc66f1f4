"""Data2Vec text: RoBERTa, trained otherwise."""

from hf_variants.convert.encoder_maps import POST_LN, ROBERTA_KEYS, bert_weights, roberta_heads
from hf_variants.convert.registry import Family

FAMILY = Family(
    model_type="data2vec-text",
    config=[*ROBERTA_KEYS, POST_LN],
    weights=bert_weights("data2vec_text."),
    prefix="data2vec_text.",
    heads=roberta_heads(),
    other_heads=("data2vec_text.pooler.",),
)
