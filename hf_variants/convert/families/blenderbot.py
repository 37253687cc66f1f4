"""Blenderbot: norms before the branches and behind each stack, none on the embeddings, learned positions from row 0."""

from hf_variants.convert.bart_kin import bart_family

FAMILY = bart_family("blenderbot", offset=0, norms_first=True, embedding_norm=False)
