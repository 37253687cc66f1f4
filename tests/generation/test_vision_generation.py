"""Generation from images and text: cached as uncached, batched as alone, beams, static caches, more images in a later turn."""

import pytest
import torch

from tests.generation.decoding import GREEDY, NEW, STATIC
from tests.towers import pixels
from tests.vision import BRIDGES, GATED, IMAGE, IMAGE_ID, MIXED, batch, each_alone, vlm

COUNTS = [part.count(IMAGE) for part in MIXED]
SLOW = ("sinks_softcap_sliding", "learned_offset", "dynamic", "moe_groups")
TEXTS = ("gqa", "mla_alternating", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW))


def new_tokens(model, inputs, **options):
    with torch.no_grad():
        return model.generate(**inputs, **{**GREEDY, **options})[:, -NEW:]


@pytest.mark.parametrize("bridge", BRIDGES)
@pytest.mark.parametrize("text", TEXTS)
def test_rows_with_and_without_images_generate_as_alone(text, bridge):
    model = vlm(text, **BRIDGES[bridge])
    inputs = batch(model, *MIXED)
    together = new_tokens(model, inputs)
    alone = [new_tokens(model, row) for _, _, row in each_alone(inputs, COUNTS)]
    assert torch.equal(together, torch.cat(alone))
    if text != "dynamic":  # its frequencies are those of the prompt, which uncached decoding does not know
        assert torch.equal(together, new_tokens(model, inputs, use_cache=False))


@pytest.mark.parametrize("bridge", BRIDGES)
@pytest.mark.parametrize("text", ["gqa", pytest.param("mla_alternating", marks=pytest.mark.slow)])
def test_beams_keep_their_images(text, bridge):
    """Rows with different numbers of images; samples of one prompt as well."""
    model = vlm(text, **BRIDGES[bridge])
    inputs = batch(model, *MIXED)
    together = new_tokens(model, inputs, num_beams=3)
    alone = [new_tokens(model, row, num_beams=3) for _, _, row in each_alone(inputs, COUNTS)]
    assert torch.equal(together, torch.cat(alone))
    twice = new_tokens(model, inputs, num_beams=2, num_return_sequences=2)
    assert torch.equal(twice[::2], new_tokens(model, inputs, num_beams=2))


@pytest.mark.parametrize("bridge", BRIDGES)
@pytest.mark.parametrize("text", ["sliding", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gqa", "mla"))])
def test_static_caches(text, bridge):
    model = vlm(text, **BRIDGES[bridge])
    inputs = batch(model, *MIXED)
    expected = new_tokens(model, inputs)
    assert torch.equal(new_tokens(model, inputs, **STATIC), expected)
    other = {**inputs, "pixel_values": inputs["pixel_values"].flip(0) * 2}
    assert torch.equal(new_tokens(model, other, **STATIC), new_tokens(model, other))


@pytest.mark.parametrize("text", ["gqa", "mla_alternating"])
def test_static_caches_of_a_prefix(text):
    model = vlm(text, image_attention="prefix")
    inputs = batch(model, *MIXED)
    inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    expected = new_tokens(model, inputs)
    assert torch.equal(new_tokens(model, inputs, **STATIC), expected)
    # without a cache all is run again at each step: what was generated is no part of the prefix
    assert torch.equal(new_tokens(model, inputs, use_cache=False), expected)
    alone = [
        new_tokens(model, {**row, "token_type_ids": torch.zeros_like(row["input_ids"])})
        for _, _, row in each_alone(inputs, COUNTS)
    ]
    assert torch.equal(expected, torch.cat(alone))


@pytest.mark.parametrize("bridge", BRIDGES)
def test_a_later_turn_brings_another_image(bridge):
    """With the cache of the first turn: its images are given again, as chats do, and not run again."""
    model = vlm(**BRIDGES[bridge])
    both = batch(model, (1, IMAGE, 2, 3, IMAGE, 4), (5, 6, IMAGE, 7, 8, IMAGE))
    first = model.config.tokens_of_image() + 3
    begun = {name: both[name][:, :first] for name in ("input_ids", "attention_mask")}
    expected = new_tokens(model, both)
    with torch.no_grad():
        cache = model(**begun, pixel_values=both["pixel_values"][[0, 2]]).past_key_values
    seen = []
    model.model.vision_tower.register_forward_hook(lambda _, inputs, out: seen.append(len(out)))
    assert torch.equal(new_tokens(model, both, past_key_values=cache), expected)
    assert seen == [2]


def test_an_image_token_is_never_generated():
    model = vlm()
    model.lm_head.weight.data[IMAGE_ID] = 0
    model.lm_head.weight.data[:IMAGE_ID] = 0
    model.lm_head.weight.data[IMAGE_ID] += model.model.language_model.norm.weight.data * 9
    inputs = batch(model, *MIXED)
    assert not (new_tokens(model, inputs) == IMAGE_ID).any()


def test_prompt_lookup_drafts_with_images():
    for keys in ({}, GATED):
        model = vlm(**keys)
        inputs = batch(model, (1, 2, 3, IMAGE, 1, 2, 3, 1, 2))
        assert torch.equal(new_tokens(model, inputs, prompt_lookup_num_tokens=3), new_tokens(model, inputs))


def test_pixels_run_once():
    model = vlm(**GATED)
    calls = []
    model.model.vision_tower.register_forward_hook(lambda *_: calls.append(1))
    new_tokens(model, {**batch(model, MIXED[0]), "pixel_values": pixels(2)})
    assert calls == [1]
