"""RoBERTa: BERT with positions counted over the ids that are no pads, and a classifier with a hidden layer."""

from hf_variants.convert.roberta_kin import roberta_family

FAMILY = roberta_family("roberta")
