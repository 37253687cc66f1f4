"""Families that are RoBERTa under another name: other words, languages or training, the same model."""

from hf_variants.convert.encoder_maps import POST_LN, ROBERTA_KEYS, bert_weights, roberta_heads
from hf_variants.convert.registry import Family


def roberta_family(model_type, stack="roberta"):
    """The `Family` of one of RoBERTa's kin.

    Args:
        model_type: transformers' name of it.
        stack: native name of the stack beside a head.
    """
    return Family(
        model_type=model_type,
        config=[*ROBERTA_KEYS, POST_LN],
        weights=bert_weights(f"{stack}."),
        prefix=f"{stack}.",
        heads=roberta_heads(),
        other_heads=(f"{stack}.pooler.",),
    )
