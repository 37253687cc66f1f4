"""B28 for images: which tokens of an image block see each other, against plain loops, on full, sliding and chunked layers."""

import itertools

import pytest
import torch

from hf_variants.modeling.masks import Blocks, Geometry, build_mask
from tests.modeling.test_b25_b28_masks import ROWS, sees
from tests.variants import far
from tests.vision import IMAGE, batch, vlm

# blocks of nine tokens, 0 outside of any
NUMBERS = [0, 1, 1, 1, 0, 2, 2, 2, 2]


@pytest.mark.parametrize("windowed", [True, False])
@pytest.mark.parametrize("row", ["plain", "left", "interior", "packed"])
def test_b28_blocks_equal_loops(row, windowed):
    real, documents, positions = ROWS[row]
    index = torch.arange(9)
    for past in (0, 2):
        numbers = torch.tensor([NUMBERS[past:]])
        geometry = Geometry(index[past:], index, past == 0, False)
        for window, chunk in [(None, None), (1, None), (2, None), (3, None), (20, None), (None, 2), (None, 4)]:
            mask = build_mask(
                geometry,
                window=window,
                chunk=chunk,
                is_causal=True,
                padding=None if all(real) else torch.tensor([real]).bool(),
                documents=None if documents is None else torch.tensor([documents]),
                positions=torch.tensor([positions]),
                blocks=Blocks(numbers, windowed),
            )
            for q, k in itertools.product(range(past, 9), range(9)):
                together = q != k and NUMBERS[q] == NUMBERS[k] > 0 and min(q, k) >= past
                expected = sees(q, k, window, chunk, True, real, documents, positions)
                if together and not windowed:
                    expected = sees(q, k, None, None, False, real, documents, positions)
                elif together and (window is None or abs(q - k) < window):
                    expected = sees(q, k, None, chunk, False, real, documents, positions)
                assert bool(mask[0, 0, q - past, k]) == expected, (window, chunk, q, k)


def moved(model, inputs, token):
    """Which tokens of the one row change where the embedding of `token` does; one layer, so what is seen is direct."""
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    base = embeds.clone()
    embeds[0, token] += 1
    with torch.no_grad():
        shared = {"blocks": model.model.blocks_of(inputs["input_ids"], [11, 11], inputs.get("token_type_ids"))}
        stack = model.model.language_model
        pair = [stack(inputs_embeds=given, **shared).last_hidden_state for given in (base, embeds)]
    return (pair[0] - pair[1]).abs().amax(-1)[0] > 1e-6


@pytest.mark.parametrize("window", [None, 4])
def test_b28_an_image_sees_itself_within_the_window(window):
    keys = {"num_hidden_layers": 1, **({} if window is None else {"sliding_window": window})}
    model = vlm(text_keys=keys, image_attention="bidirectional")
    inputs = batch(model, (1, 2, IMAGE, 3, IMAGE, 4))
    reach = 99 if window is None else window
    block = [0, 0] + [1] * 11 + [0] + [2] * 11 + [0]
    for token in (3, 12, 14, 20, 24):
        near = [abs(q - token) < reach for q in range(len(block))]
        together = [q >= token or block[q] == block[token] > 0 for q in range(len(block))]
        expected = [a and b for a, b in zip(near, together, strict=True)]
        assert moved(model, inputs, token).tolist() == expected


def test_a_prefix_sees_itself_on_sliding_layers_too():
    model = vlm(text_keys={"num_hidden_layers": 1, "sliding_window": 4}, image_attention="prefix")
    inputs = batch(model, (1, 2, IMAGE, 3, IMAGE, 4))
    inputs["token_type_ids"] = (torch.arange(26) >= 20).long().unsqueeze(0)
    for token in (0, 5, 19, 20, 23):
        expected = [(token <= q < token + 4) or (q < 20 and token < 20) for q in range(26)]
        assert moved(model, inputs, token).tolist() == expected


def test_a_prefix_needs_its_types():
    model = vlm(image_attention="prefix")
    with pytest.raises(ValueError, match="needs token_type_ids"):
        model(**batch(model, (IMAGE, 1)))


def test_causal_images_hide_what_comes_later():
    for keys, leaks in (({}, False), ({"image_attention": "bidirectional"}, True)):
        model = vlm(**keys)
        inputs = batch(model, (1, IMAGE, 2))
        changed = inputs["pixel_values"].clone()
        changed[:, :, 8:, 8:] += 1
        with torch.no_grad():
            # the tower itself sees all of the image: compare under fixed features but for the last patch
            features = model.get_image_features(inputs["pixel_values"])[0]
            other = model.get_image_features(changed)[0]
            mixed = torch.cat((features[:9], other[9:10], features[10:]))
            embeds = model.get_input_embeddings()(inputs["input_ids"])
            blocks = model.model.blocks_of(inputs["input_ids"], [11], None)
            rows = [torch.cat((embeds[:, :1], part.unsqueeze(0), embeds[:, -1:]), dim=1) for part in (features, mixed)]
            first, second = (model.model.language_model(inputs_embeds=r, blocks=blocks).last_hidden_state for r in rows)
        assert (far(first[:, 1], second[:, 1]) > 1e-4) == leaks and far(first[:, 0], second[:, 0]) == 0.0
