"""XLM-RoBERTa: RoBERTa with another vocabulary."""

from hf_variants.convert.roberta_kin import roberta_family

FAMILY = roberta_family("xlm-roberta")
