"""BART: post-LN in both stacks, a norm on the embeddings, learned positions two rows further on."""

from hf_variants.convert.bart_kin import bart_family

FAMILY = bart_family("bart")
