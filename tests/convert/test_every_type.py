"""Every type that transformers builds a language model for is a family, or named with a reason."""

import pytest
from transformers.models.auto import modeling_auto

from hf_variants.convert.left_out import LEFT_OUT, UNWRITTEN
from hf_variants.convert.registry import family_names, find_family
from hf_variants.convert.vision_families import VISION_FAMILIES, VISION_LEFT_OUT

OURS = {"variants", "variants_seq2seq", "variants_vision"}


def _types(*tables):
    return {name for table in tables for name in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES")} - OURS


def test_every_type_is_a_family_or_named():
    """A newer transformers with types of its own fails here until somebody has judged them."""
    known = {*family_names(), *LEFT_OUT, *VISION_FAMILIES, *VISION_LEFT_OUT}
    asked = _types("CAUSAL_LM", "MASKED_LM", "IMAGE_TEXT_TO_TEXT") - _types("SEQ_TO_SEQ_CAUSAL_LM")
    assert sorted(asked - known) == sorted(set(UNWRITTEN) - known)
    assert not set(family_names()) & {*LEFT_OUT, *UNWRITTEN}


@pytest.mark.parametrize(
    ("model_type", "match"),
    [
        ("longformer", "no toggle means windows beside tokens"),
        ("llama4", "no family file has been written for it .nearest known: .*llama4_text"),
        ("rembert", "no family file has been written for it"),
    ],
)
def test_a_type_that_does_not_convert_says_why(model_type, match):
    with pytest.raises(ValueError, match=f"model_type='{model_type}' cannot be converted: {match}"):
        find_family(model_type)
