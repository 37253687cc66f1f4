"""A cache changes nothing: steps, chunks of a prompt, crops and beam reorderings give the logits of one full forward."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.modeling.helpers import MIXERS, TOLERANCE, logits_of, model_of, scaled_far
from tests.variants import TOGGLES, draw_ids, tiny

LENGTH = 21
FOLLOWS = {name for name in TOGGLES if "dynamic" in name or "longrope" in name}
FREE_OF_LENGTH = [name for name in TOGGLES if name not in FOLLOWS]


def run(model, ids, cache, cuts):
    """Logits of `ids` fed piece by piece, cut at `cuts`."""
    pieces = []
    with torch.no_grad():
        for start, end in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
            pieces.append(model(ids[:, start:end], past_key_values=cache, use_cache=True).logits)
    return torch.cat(pieces, dim=1)


@pytest.mark.parametrize("name", FREE_OF_LENGTH)
def test_steps_and_chunks_equal_a_full_forward(name):
    model, ids = model_of(name), draw_ids(2, LENGTH)
    full = logits_of(model, ids, use_cache=False)
    for cuts in ([7, *range(8, LENGTH)], [3, 6, 14, 20], range(1, LENGTH)):
        cache = DynamicCache(config=model.config)
        assert scaled_far(run(model, ids, cache, list(cuts)), full) <= TOLERANCE
        assert cache.get_seq_length() == LENGTH


@pytest.mark.parametrize("name", [name for name in MIXERS if name not in FOLLOWS])
def test_static_cache_equals_a_full_forward(name):
    model, ids = model_of(name), draw_ids(2, LENGTH)
    full = logits_of(model, ids, use_cache=False)
    cache = StaticCache(config=model.config, max_cache_len=LENGTH + 6)
    assert scaled_far(run(model, ids, cache, [9, *range(10, LENGTH)]), full) <= TOLERANCE


@pytest.mark.parametrize("name", ["gqa", "mla", "mla_qk_head", "alibi", "learned", "dynamic", "longrope", "mla_dynamic"])
def test_a_cropped_cache_goes_on_as_if_the_tail_had_not_been(name):
    model, ids, other = model_of(name), draw_ids(2, 14), draw_ids(2, 14, seed=7)
    cache, fresh = DynamicCache(config=model.config), DynamicCache(config=model.config)
    run(model, torch.cat((ids[:, :9], other[:, :4]), dim=1), cache, [9])
    cache.crop(-4)
    run(model, ids[:, :9], fresh, [])
    steps = [run(model, ids[:, 9:], used, [1, 2, 3, 4]) for used in (cache, fresh)]
    assert scaled_far(*steps) <= TOLERANCE


@pytest.mark.parametrize("name", ["gqa", "mla_alternating", "alternating", "alibi", "dynamic", "longrope"])
def test_a_reordered_cache_follows_its_beams(name):
    model, ids = model_of(name), draw_ids(3, LENGTH)
    cache, order = DynamicCache(config=model.config), torch.tensor([2, 0, 2])
    run(model, ids[:, :10], cache, [])
    cache.reorder_cache(order)
    reordered = run(model, ids[order][:, 10:], cache, [1, 2, 3])
    fresh = DynamicCache(config=model.config)
    run(model, ids[order][:, :10], fresh, [])
    assert scaled_far(reordered, run(model, ids[order][:, 10:], fresh, [1, 2, 3])) <= TOLERANCE


@pytest.mark.parametrize("window", [1, 2, 3, 100])
@pytest.mark.parametrize("name", ["sliding", "mla_sliding"])
@pytest.mark.parametrize("cache_class", [DynamicCache, StaticCache])
def test_windows_of_any_width_decode_as_at_once(name, window, cache_class):
    from tests.variants import build

    model, ids = build(tiny(name, sliding_window=window)), draw_ids(2, 12)
    sizes = {"max_cache_len": 16} if cache_class is StaticCache else {}
    cache = cache_class(config=model.config, **sizes)
    assert scaled_far(run(model, ids, cache, [5, 7, 8, 9, 10]), logits_of(model, ids, use_cache=False)) <= TOLERANCE
