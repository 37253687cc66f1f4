"""Alignment, attention to images and cost of images, against definitions spelled out here and against the models."""

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hf_variants.diagnostics import alignment, count_image_cost, image_attention, measure_seconds, prompt_of
from hf_variants.diagnostics.attention_tally import entropy
from tests.towers import own_config
from tests.variants import MLA
from tests.vision import BRIDGES, IMAGE, IMAGE_ID, MIXED, batch, vision_config, vlm


def orthogonal(size, seed=0):
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))[0]


def words_and_images(kinds=6, per_kind=4, tokens=3, width=8, noise=0.0):
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(kinds, width, generator=generator)
    of_image = torch.arange(kinds).repeat_interleave(per_kind)
    visual = words[of_image][:, None].expand(-1, tokens, -1)
    return visual + noise * torch.randn(visual.shape, generator=generator), words, of_image


def test_equal_tokens_are_aligned_in_every_measure():
    visual, words, of_image = words_and_images()
    found = alignment(visual, words, words, of_image)
    for name, value in {
        "nearest_cosine": 1,
        "pair_cosine": 1,
        "word_share": 1,
        "cka": 1,
        "frobenius": 0,
        "procrustes": 0,
    }.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name


def test_geometry_ignores_rotation_and_scale_and_positions_do_not():
    visual, words, of_image = words_and_images(noise=0.3)
    before = alignment(visual, words, words, of_image)
    after = alignment(3 * visual.double() @ orthogonal(8), words, words, of_image)
    for name in ("cka", "procrustes"):
        assert after[name] == pytest.approx(before[name], abs=1e-6)
    assert after["pair_cosine"] < before["pair_cosine"] - 0.3 and after["frobenius"] > before["frobenius"] + 0.1


def test_noise_loosens_every_measure():
    clean, noisy = (
        alignment(*(parts[0], parts[1], parts[1], parts[2])) for parts in map(lambda n: words_and_images(noise=n), (0.1, 3.0))
    )
    for name in ("nearest_cosine", "pair_cosine", "word_share", "cka"):
        assert noisy[name] < clean[name]
    for name in ("frobenius", "procrustes"):
        assert noisy[name] > clean[name]


def test_procrustes_is_that_of_scipy():
    scipy = pytest.importorskip("scipy.spatial")
    visual, words, of_image = words_and_images(noise=0.5)
    expected = scipy.procrustes(words[of_image].numpy(), visual.mean(dim=1).numpy())[2]
    assert alignment(visual, words, words, of_image)["procrustes"] == pytest.approx(expected, abs=1e-6)


def test_alignment_refuses_what_it_cannot_compare():
    visual, words, of_image = words_and_images()
    with pytest.raises(ValueError, match=r"of one width"):
        alignment(visual, words[:, :4], words, of_image)
    with pytest.raises(ValueError, match="2 images of 1 words are too few"):
        alignment(visual[:2], words, words, of_image[:2])


@pytest.mark.parametrize("bridge", ["projection", "gated", "gated_all"])
def test_entropy_of_a_blind_model_is_its_bound(bridge):
    """Without queries every key that is seen weighs the same: entropy log(N + j), a share of N / (N + j) on images."""
    model = vlm(**BRIDGES[bridge])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name:
                parameter.zero_()
    inputs = batch(model, *MIXED)
    readings = image_attention(model, inputs)
    assert [reading.layer for reading in readings] == [0, 1]
    is_image, real = inputs["input_ids"] == IMAGE_ID, inputs["attention_mask"].bool()
    bounds, shares = [], []
    for row in range(len(is_image)):
        images = texts = 0
        for image, token in zip(is_image[row], real[row], strict=True):
            images, texts = images + int(token and image), texts + int(token and not image)
            if token and not image and images:
                bounds.append(math.log(images + texts))
                shares.append(images / (images + texts))
    for reading in readings:
        assert reading.entropy == pytest.approx(sum(bounds) / len(bounds), abs=1e-5)
        assert reading.bound == pytest.approx(reading.entropy, abs=1e-5) and reading.fullest == pytest.approx(1, abs=1e-5)
        assert reading.image_share == pytest.approx(sum(shares) / len(shares), abs=1e-5)
        assert reading.even_share == pytest.approx(reading.image_share, abs=1e-5)
    crossed = [reading for reading in readings if reading.attention_gate is not None]
    assert len(crossed) == {"projection": 0, "gated": 2, "gated_all": 1}[bridge]
    for reading in crossed:
        assert (
            reading.cross_entropy == pytest.approx(reading.cross_bound, abs=1e-5) and reading.cross_bound >= math.log(9) - 1e-6
        )
        assert reading.attention_gate == pytest.approx(
            math.tanh(model.model.cross_layers[str(reading.layer)].attn_gate.alpha.item())
        )


@pytest.mark.parametrize("bridge", ["projection", "gated"])
def test_readings_are_those_of_the_weights_and_leave_the_model_as_it_was(bridge):
    model = vlm(**BRIDGES[bridge])
    inputs = batch(model, (1, IMAGE, 2, 3))
    with torch.no_grad():
        before = model(**inputs).logits
        readings = image_attention(model, inputs)
        assert torch.equal(model(**inputs).logits, before)
        model.set_attn_implementation("eager")
        weights = model(**inputs, output_attentions=True).attentions
    for reading, layer in zip(readings, weights[-2:], strict=True):
        rows = layer[0, :, -2:].double()
        assert reading.entropy == pytest.approx(entropy(rows).mean().item(), abs=1e-5)
        assert reading.image_share == pytest.approx(rows[..., 1:-2].sum(dim=-1).mean().item(), abs=1e-5)
        assert 0 < reading.fullest <= 1 + 1e-6


def test_no_text_behind_an_image_is_refused():
    model = vlm()
    with pytest.raises(ValueError, match="no text token stands behind an image"):
        image_attention(model, batch(model, (1, 2, IMAGE)))
    with pytest.raises(ValueError, match="model_type='variants' reads no images"):
        image_attention(model.model.language_model, batch(model, (1, 2, IMAGE)))


COMPRESSED = {
    "projection": {},
    "pool": {"token_compression": "pool", "compression_factor": 3},
    "resampler": {"token_compression": "resampler", "num_resampler_tokens": 4, "num_resampler_heads": 2},
    "gated": BRIDGES["gated"],
    "gated_all": BRIDGES["gated_all"],
    "clip": {"tower": "clip_vision_model", "vision_feature_layer": [-2, -1]},
    "class_kept": {"tower": "vit", "vision_feature_select_strategy": "full"},
    "own": {"tower": own_config({"image_size": 12}, position_embedding_type="learned")},
    "own_latent": {"tower": own_config({"image_size": 12}, **MLA)},
}


def cache_bytes(cache):
    """Bytes of all tensors that layers of a cache hold, those of images included."""
    held = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.numel() * tensor.element_size() for tensor in held if tensor is not None)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("kind", COMPRESSED)
def test_counted_cost_is_that_of_the_model(kind, images):
    # the counter hooks gradients, which a parameter that is an input would lack here
    model = vlm(backend="eager", **COMPRESSED[kind]).requires_grad_(False)
    cost = count_image_cost(model.config, images, 5, dtype_bytes=4)
    inputs = prompt_of(model.config, images, 5)
    assert inputs["input_ids"].shape[1] == cost.length == images * model.config.tokens_of_image() + 5
    # the counter does not know the fused kernel of CPUs, which the resampler would run
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        cache = model(**inputs, logits_to_keep=1, use_cache=True).past_key_values
    # what eager computes of masked pairs is no work that the prompt needs
    text, length = model.config.text_config, cost.length
    per_pair = 2 * text.num_attention_heads * 2 * text.head_dim * text.num_hidden_layers
    hidden = per_pair * (length * length - length * (length + 1) // 2)
    assert counter.get_total_flops() == pytest.approx(cost.total_flops + hidden, rel=1e-6)
    assert cache_bytes(cache) == cost.cache_bytes


def test_scores_are_quadratic_in_the_images_and_compression_shrinks_them():
    plain, pooled = (vision_config(**COMPRESSED[kind]) for kind in ("projection", "pool"))
    scores = [count_image_cost(plain, images, 1).flops["scores"] for images in (50, 100)]
    assert 3.9 < scores[1] / scores[0] < 4.0
    assert count_image_cost(pooled, 8, 5).total_flops < count_image_cost(plain, 8, 5).total_flops
    assert count_image_cost(pooled, 8, 5).cache_bytes < count_image_cost(plain, 8, 5).cache_bytes
    with pytest.raises(ValueError, match="images=-1"):
        count_image_cost(plain, -1, 5)


def test_times_are_measured_for_every_prompt():
    model = vlm()
    found = measure_seconds({"own": model}, {"own": [prompt_of(model.config, images, 3) for images in (0, 2)]}, repeats=1)
    assert len(found["own"]) == 2 and all(0 < seconds < 10 for seconds in found["own"])
