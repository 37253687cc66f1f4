"""Native image encoders and our own with their weights give the same states."""

import pytest
import torch

from hf_variants.convert.image_encoders import NAMES, from_native_image_encoder, image_encoder_config
from hf_variants.modeling.vision_tower import LAST, build_tower
from tests.towers import NATIVE, native_config, pixels, randomise

OTHERS = {
    "vit": {"qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "image_size": [12, 8], "patch_size": [4, 2]},
    "siglip_vision_model": {"hidden_act": "gelu", "vision_use_head": True, "num_channels": 1},
    "clip_vision_model": {"hidden_act": "relu", "patch_size": 3, "layer_norm_eps": 1e-2},
}


@pytest.mark.parametrize("changed", [False, True], ids=["default", "changed"])
@pytest.mark.parametrize("kind", NAMES)
def test_all_states_equal(kind, changed):
    native = randomise(NATIVE[kind][1](native_config(kind, **(OTHERS[kind] if changed else {}))))
    model = from_native_image_encoder(native)
    images = pixels(2, native.config.num_channels, *model.config.image_sides)
    with torch.no_grad():
        expected = native(images, output_hidden_states=True)
        found = model(images, output_hidden_states=True)
    assert len(found.hidden_states) == len(expected.hidden_states) == 4
    for ours, theirs in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert (ours - theirs).abs().max() <= 1e-5
    assert (found.last_hidden_state - expected.last_hidden_state).abs().max() <= 1e-5


@pytest.mark.parametrize("layer", [-2, LAST, [-1, 0]], ids=str)
@pytest.mark.parametrize("kind", NAMES)
def test_as_towers_they_are_the_same(kind, layer):
    native = randomise(NATIVE[kind][1](native_config(kind)))
    features = []
    for model in (native, from_native_image_encoder(native)):
        tower = build_tower(model.config, layer).eval()
        assert not tower.vision_model.load_state_dict(model.state_dict(), strict=False).missing_keys
        with torch.no_grad():
            features.append(tower(pixels()))
    assert features[0].shape == features[1].shape
    assert (features[0] - features[1]).abs().max() <= 1e-5


def test_others_are_refused_by_name():
    with pytest.raises(ValueError, match=r"'dinov2' cannot be taken.*siglip_vision_model"):
        image_encoder_config(native_config("dinov2"))
