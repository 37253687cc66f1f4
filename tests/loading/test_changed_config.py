"""A toggle set on the config of a built model does not pass for an effect: not in a checkpoint, not in a conversion."""

import pytest
import torch
from transformers.utils import logging as transformers_logging

import hf_variants
from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.modeling.built_config import LIVE_FIELDS

SHAPE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture
def model():
    return VariantsForCausalLM(VariantsConfig(**SHAPE)).eval()


def test_checkpoint_computes_what_was_trained(model, tmp_path, caplog):
    ids = torch.randint(0, 64, (1, 20))
    expected = model(ids).logits
    model.config.sliding_window, model.config.layer_types = 4, ["sliding_attention"] * 2
    assert set(model.changed_fields()) == {"sliding_window", "layer_types"}
    transformers_logging.enable_propagation()
    try:
        model.save_pretrained(tmp_path)
    finally:
        transformers_logging.disable_propagation()
    assert "sliding_window=4 (built with None)" in caplog.text
    assert model.config.sliding_window == 4  # what the user set is still there
    loaded = VariantsForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.sliding_window is None
    assert (loaded(ids).logits - expected).abs().max() < 1e-6


def test_conversion_refuses(model):
    model.config.qk_norm = "head"
    with pytest.raises(ValueError, match="qk_norm='head' \\(built with 'none'\\)"):
        hf_variants.convert.to_native(model, "qwen3")


def test_the_way_that_the_text_names(model, tmp_path):
    model.save_pretrained(tmp_path)
    ids = torch.randint(0, 64, (1, 20))
    changed = VariantsForCausalLM.from_pretrained(tmp_path, sliding_window=4, layer_types=["sliding_attention"] * 2)
    assert not changed.changed_fields()
    assert (changed(ids).logits - model(ids).logits).abs().max() > 1e-4


def test_live_fields_do_act(model, tmp_path):
    ids = torch.randint(0, 64, (1, 8))
    before = model(ids).logits
    model.config.final_logit_softcapping = 0.01
    assert model(ids).logits.abs().max() <= 0.01 < before.abs().max()
    model.resize_token_embeddings(80)
    assert not model.changed_fields()
    model.save_pretrained(tmp_path)
    loaded = VariantsForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.vocab_size == 80 and loaded.config.final_logit_softcapping == 0.01


def test_every_other_field_is_watched(model):
    assert set(model.built_fields) | LIVE_FIELDS == set(VariantsConfig.own_fields())
