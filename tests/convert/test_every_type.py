"""Every type that transformers builds a language model for is a family, or named with a reason."""

import json

import pytest
import torch
from native_cases import native_model
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from hf_variants.convert import convert_checkpoint, from_native, registry, to_native
from hf_variants.convert.left_out import LEFT_OUT, UNWRITTEN
from hf_variants.convert.registry import ALIASES, family_names, find_family
from hf_variants.convert.vision_families import VISION_FAMILIES, VISION_LEFT_OUT

OURS = {"variants", "variants_seq2seq", "variants_vision"}


def _types(*tables):
    return {name for table in tables for name in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES")} - OURS


def test_every_type_is_a_family_or_named():
    """A newer transformers with types of its own fails here until somebody has judged them."""
    known = {*family_names(), *ALIASES, *LEFT_OUT, *VISION_FAMILIES, *VISION_LEFT_OUT}
    asked = _types("CAUSAL_LM", "MASKED_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM")
    assert sorted(asked - known) == sorted(set(UNWRITTEN) - known)


def test_no_type_is_judged_twice_and_none_is_made_up():
    judged = [*family_names(), *ALIASES, *LEFT_OUT, *VISION_FAMILIES, *VISION_LEFT_OUT, *UNWRITTEN]
    assert sorted(judged) == sorted(set(judged))
    assert not set(judged) - set(CONFIG_MAPPING_NAMES)


def test_a_type_that_is_another_type(tmp_path):
    """transformers reads GPT-SW3 with GPT-2's config and model, and writes it as GPT-2; so does the conversion."""
    native = native_model("gpt2", "plain")
    native.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_type": "gpt-sw3"}))
    back = to_native(from_native(tmp_path))
    assert type(back) is type(native) and back.config.model_type == "gpt2"
    assert all(torch.equal(tensor, back.state_dict()[key]) for key, tensor in native.state_dict().items())


def test_a_language_model_that_transformers_lists_among_those_that_read_images(tmp_path):
    """Mistral 4's, through folders and the streamed conversion with its proof."""
    native = native_model("mistral4", "tempered")
    native.save_pretrained(tmp_path / "native")
    report = convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    assert report["proof"]["gradients"] is not None
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    back = type(native).from_pretrained(tmp_path / "back")
    assert all(torch.equal(tensor, back.state_dict()[key]) for key, tensor in native.state_dict().items())
    assert type(to_native(from_native(tmp_path / "native"))) is type(native)


@pytest.mark.parametrize(
    ("model_type", "match"),
    [
        ("longformer", "no toggle means windows beside tokens"),
        ("llama4", "no toggle means a tower with positions in two directions"),
        ("rembert", "no toggle means a language-model head of a width of its own"),
    ],
)
def test_a_type_that_does_not_convert_says_why(model_type, match):
    with pytest.raises(ValueError, match=f"model_type='{model_type}' cannot be converted: {match}"):
        find_family(model_type)


def test_a_type_nobody_has_written_names_the_nearest(monkeypatch):
    monkeypatch.setattr(registry, "UNWRITTEN", ("llama5_text",))
    with pytest.raises(ValueError, match="no family file has been written for it .nearest known: .*llama4_text"):
        find_family("llama5_text")
