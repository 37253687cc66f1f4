"""Data2Vec text: RoBERTa, trained otherwise."""

from hf_variants.convert.roberta_kin import roberta_family

FAMILY = roberta_family("data2vec-text", stack="data2vec_text")
