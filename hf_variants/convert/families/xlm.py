"""XLM: BERT's post-LN encoder without token types, under names of its own; `sinusoidal_embeddings` only fills a table once."""

from hf_variants.convert.xlm_kin import xlm_family

FAMILY = xlm_family("xlm")
