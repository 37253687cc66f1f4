"""A config of four layers, small enough to count by hand."""

from hf_variants import VariantsConfig


def tiny(**keys):
    base = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
    return VariantsConfig(**{**base, "max_position_embeddings": 64, **keys})
