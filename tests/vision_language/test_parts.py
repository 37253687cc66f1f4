"""Trained parts under a fresh bridge, and batches without images in training."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_variants import VariantsForImageTextToText, VariantsImageEncoder, VariantsModel
from hf_variants.convert import from_native
from tests.towers import NATIVE, native_config, own_config, pixels
from tests.towers import randomise as randomise_tower
from tests.variants import build, far, tiny
from tests.vision import BRIDGES, GATED, IMAGE_ID, MIXED, batch, vlm


def tower_of(kind):
    if kind == "own":
        return randomise_tower(VariantsImageEncoder(own_config({"num_channels": 3, "image_size": 12})))
    config_class, model_class, more = NATIVE[kind]
    return randomise_tower(model_class(native_config(kind)))


@pytest.mark.parametrize("kind", [*NATIVE, "own"])
def test_parts_compute_what_they_did(kind):
    text, tower = build(tiny("mla_alternating")), tower_of(kind)
    model = VariantsForImageTextToText.from_parts(text, tower, IMAGE_ID, **GATED).eval()
    inputs = batch(model, *MIXED)
    with torch.no_grad():
        expected = text(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        assert torch.equal(model(**inputs).logits, expected)
        states = tower(pixels()).last_hidden_state
        features = model.model.vision_tower(pixels())
    assert far(features, states[:, states.shape[1] - features.shape[1] :]) == 0.0


def test_a_native_language_model_by_way_of_the_family():
    native = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4)
    ).eval()
    text = from_native(native)
    text.resize_token_embeddings(65, mean_resizing=False)
    model = VariantsForImageTextToText.from_parts(text, tower_of("clip_vision_model"), 64, vision_feature_layer=-2).eval()
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert far(model(input_ids=ids).logits[..., :64], native(ids).logits) <= 1e-5


def test_other_parts_are_refused():
    text, tower = build(tiny("gqa")), tower_of("vit")
    with pytest.raises(ValueError, match="VariantsModel is no VariantsForCausalLM"):
        VariantsForImageTextToText.from_parts(VariantsModel(tiny("gqa")), tower, IMAGE_ID)
    with pytest.raises(ValueError, match="is not a supported vision tower"):
        VariantsForImageTextToText.from_parts(text, text, IMAGE_ID)
    with pytest.raises(ValueError, match="no key 'brigde' .did you mean 'bridge'"):
        VariantsForImageTextToText.from_parts(text, tower, IMAGE_ID, brigde="projection")


@pytest.mark.parametrize("bridge", BRIDGES)
def test_b45_a_batch_without_images_has_a_gradient_for_every_trained_parameter(bridge):
    """Ranks that train together wait for the same gradients; a part that is frozen stays out of it."""
    model = vlm(**BRIDGES[bridge]).train()
    inputs = batch(model, MIXED[1], MIXED[3])
    model.model.vision_tower.requires_grad_(False)
    loss = model(**inputs, labels=inputs["input_ids"]).loss
    loss.backward()
    for name, parameter in model.named_parameters():
        frozen = "vision_tower" in name
        assert (parameter.grad is None) == frozen, name
        if "multi_modal_projector" in name or "cross_layers" in name:
            assert not parameter.grad.any()
    with torch.no_grad():
        assert far(model(**inputs, labels=inputs["input_ids"]).loss, loss) <= 1e-5
