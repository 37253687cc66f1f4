"""Token compression: how many tokens an image becomes, what they hold, and what does not fit."""

import pytest
import torch
from transformers.models.idefics3.modeling_idefics3 import Idefics3Connector

from hf_variants import VariantsForImageTextToText
from tests.modeling.helpers import TOLERANCE
from tests.towers import native_config, own_config, pixels
from tests.variants import far
from tests.vision import GATED, IMAGE, batch, vision_config, vlm

TOWER = native_config("siglip_vision_model", image_size=16)
KEYS = {
    "none": ({}, 16),
    "pool": ({"token_compression": "pool"}, 4),
    "pool_4": ({"token_compression": "pool", "compression_factor": 4}, 1),
    "pixel_shuffle": ({"token_compression": "pixel_shuffle"}, 4),
    "resampler": ({"token_compression": "resampler", "num_resampler_tokens": 5, "num_resampler_heads": 3}, 5),
}


@pytest.mark.parametrize("bridge", ["projection", "gated"])
@pytest.mark.parametrize("name", KEYS)
def test_the_config_counts_what_the_model_gives(name, bridge):
    keys, count = KEYS[name]
    model = vlm(tower=TOWER, **keys, **(GATED if bridge == "gated" else {}))
    images = pixels(2, 3, 16, 16)
    read = [len(image) for image in model.get_image_features(images)]
    assert model.config.features_of_image(16, 16) == count
    if bridge == "gated":
        assert read == [count] * 2 and model.config.tokens_of_image() == 1
    else:
        assert read == [count + 2] * 2 == model.model.image_lengths(images) and model.config.tokens_of_image() == count + 2
    inputs = {**batch(model, (1, IMAGE, 2, IMAGE)), "pixel_values": images}
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.model.multi_modal_projector.parameters())


def test_pool_is_the_mean_of_each_square():
    compress = vlm(tower=TOWER, token_compression="pool").model.multi_modal_projector.compression
    features = torch.randn(2, 2 * 6, 5)
    grid = features.transpose(1, 2).reshape(2, 5, 2, 6)
    expected = torch.nn.functional.avg_pool2d(grid, 2).flatten(2).transpose(1, 2)
    assert far(compress(features, (2, 6)), expected) <= TOLERANCE


def test_pixel_shuffle_is_idefics3s():
    compress = vlm(tower=TOWER, token_compression="pixel_shuffle").model.multi_modal_projector.compression
    features = torch.randn(2, 36, 5)
    assert far(compress(features, (6, 6)), Idefics3Connector.pixel_shuffle(None, features, 2)) == 0.0


def test_pixel_shuffle_of_a_grid_that_is_no_square():
    compress = vlm(tower=TOWER, token_compression="pixel_shuffle").model.multi_modal_projector.compression
    patches = torch.arange(8.0).view(1, 8, 1)
    assert compress(patches, (2, 4)).tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7]]]


def test_a_resampler_reads_patches_as_a_set():
    """Positions come with the features, so the order of the patches does not matter; their content does."""
    compress = vlm(tower=TOWER, **KEYS["resampler"][0]).model.multi_modal_projector.compression
    features = torch.randn(1, 16, 24)
    found = compress(features, (4, 4))
    assert far(found, compress(features.flip(1), (4, 4))) <= TOLERANCE
    assert far(found, compress(features + torch.randn(1, 16, 24), (4, 4))) > 1e-3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"token_compression": "pool", "compression_factor": 3}, "compression_factor=3 does not divide the 4 x 4 patches"),
        ({"token_compression": "pool", "compression_factor": 1}, "compression_factor=1 joins nothing"),
        ({"token_compression": "pool", "compression_factor": 0}, "compression_factor=0 must be greater than zero"),
        ({"compression_factor": 2}, "compression_factor=2 has no effect with token_compression='none'"),
        ({"token_compression": "pool", "num_resampler_tokens": 4}, "num_resampler_tokens=4 has no effect"),
        ({"token_compression": "resampler", "num_resampler_heads": 5}, "num_resampler_heads=5 does not divide"),
        ({"token_compression": "pol"}, "did you mean 'pool'"),
    ],
)
def test_what_does_not_fit_is_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        vision_config(tower=TOWER, **keys)


def test_an_image_that_squares_do_not_tile_is_refused():
    model = vlm(tower=native_config("dinov2", image_size=16), token_compression="pool")
    with pytest.raises(ValueError, match="do not tile an image of 3 x 4 patches"):
        model.get_image_features(pixels(1, 3, 12, 16))


def test_a_resampler_starts_with_queries_that_differ():
    torch.manual_seed(0)
    model = VariantsForImageTextToText(
        vision_config(tower=own_config({"num_channels": 3}), **KEYS["resampler"][0] | {"num_resampler_heads": 4})
    )
    queries = model.model.multi_modal_projector.compression.queries
    assert 0.01 < queries.std() < 0.04
