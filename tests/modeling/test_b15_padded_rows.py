"""B15: a padded row gives the logits of the row alone, without position_ids, wherever pads stand; they never make a NaN."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.modeling.helpers import BOTH_WAYS, MIXERS, TOLERANCE, logits_of, model_of, padded, scaled_far
from tests.variants import build, draw_ids, tiny

LENGTH, WIDTH = 19, 26
PLACES = {
    "left": list(range(WIDTH - LENGTH, WIDTH)),
    "right": list(range(LENGTH)),
    "both": list(range(3, 3 + LENGTH)),
}


def check_padding(model, places):
    """Rows padded in every way of `places`, an unpadded row and a row of pads in one batch, against each row alone."""
    ids, full = draw_ids(1, LENGTH), draw_ids(1, WIDTH, seed=9)
    rows = [padded(ids, columns, WIDTH) for columns in places.values()]
    rows += [(full, torch.ones_like(full)), (torch.zeros_like(full), torch.zeros_like(full))]
    batch, mask = (torch.cat(parts) for parts in zip(*rows, strict=True))
    out = logits_of(model, batch, attention_mask=mask)
    assert out.isfinite().all()
    alone = logits_of(model, ids)
    for row, (place, columns) in enumerate(places.items()):
        assert scaled_far(out[row : row + 1, columns], alone) <= TOLERANCE, place
    assert scaled_far(out[len(places)], logits_of(model, full)[0]) <= TOLERANCE


@pytest.mark.parametrize("name, is_causal", BOTH_WAYS)
def test_b15_padded_rows_equal_unpadded(name, is_causal):
    check_padding(model_of(name, is_causal=is_causal), PLACES)


@pytest.mark.parametrize("name", ["gqa", "mla_alternating", "sinks_softcap_sliding", "alibi_terms", "chunked", "longrope"])
def test_b15_padded_rows_in_eager(name):
    check_padding(model_of(name, "eager"), PLACES)


INTERIOR = {"interior": [*range(0, 4), *range(6, 9), *range(10, 22)]}
# windows and chunks count columns, as in transformers, whose sliding caches keep columns
COUNT_COLUMNS = ("sliding_attention", "chunked_attention")


@pytest.mark.parametrize("is_causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("name", [name for name in MIXERS if not set(tiny(name).layer_types) & set(COUNT_COLUMNS)])
def test_b15_interior_pads(name, is_causal):
    check_padding(model_of(name, is_causal=is_causal), INTERIOR)


def decode(model, ids, mask, cuts, cache):
    """Logits of `ids` fed piece by piece under a growing mask, without position_ids."""
    pieces = []
    with torch.no_grad():
        for start, end in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
            out = model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
            pieces.append(out.logits)
    return torch.cat(pieces, dim=1)


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_b15_left_padded_decoding_equals_unpadded(name, cache):
    """The first piece holds nothing but pads of the short row; the long row decodes beside it."""
    model, pads = model_of(name), WIDTH - LENGTH
    ids, other = draw_ids(1, LENGTH), draw_ids(1, WIDTH, seed=5)
    row, mask = padded(ids, PLACES["left"], WIDTH)
    batch, mask = torch.cat((row, other)), torch.cat((mask, torch.ones_like(mask)))
    cuts = [pads - 2, pads + 4, *range(pads + 5, WIDTH)]
    make = {
        "dynamic": lambda: DynamicCache(config=model.config),
        "static": lambda: StaticCache(config=model.config, max_cache_len=WIDTH + 2),
    }[cache]
    decoded = decode(model, batch, mask, cuts, make())
    short_alone = decode(model, ids, torch.ones_like(ids), [cut - pads for cut in cuts[1:]], DynamicCache(config=model.config))
    long_alone = decode(model, other, torch.ones_like(other), cuts, DynamicCache(config=model.config))
    assert scaled_far(decoded[:1, pads:], short_alone) <= TOLERANCE
    assert scaled_far(decoded[1:], long_alone) <= TOLERANCE


@pytest.mark.parametrize("name", ["gqa", "mla", "alibi", "learned", "sinusoidal", "no_positions", "dynamic", "longrope"])
def test_b15_batched_greedy_equals_single_greedy(name):
    model = model_of(name)
    prompts = [draw_ids(1, 14, seed=2), draw_ids(1, 5, seed=3)]
    rows = [padded(prompt, list(range(14 - prompt.shape[1], 14)), 14) for prompt in prompts]
    batch, mask = (torch.cat(parts) for parts in zip(*rows, strict=True))
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    together = model.generate(batch, attention_mask=mask, **options)
    for row, prompt in enumerate(prompts):
        assert together[row, 14:].tolist() == model.generate(prompt, **options)[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("name", ["sinks_softcap_sliding", "mla_alternating", "alibi_terms", "moe_groups"])
def test_b15_gradients_of_padded_rows_are_finite(name):
    model = build(tiny(name)).train()
    batch, mask = padded(draw_ids(1, LENGTH), PLACES["left"], WIDTH)
    batch, mask = torch.cat((batch, torch.zeros_like(batch))), torch.cat((mask, torch.zeros_like(mask)))
    model(batch, attention_mask=mask, labels=batch.masked_fill(mask == 0, -100)).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
