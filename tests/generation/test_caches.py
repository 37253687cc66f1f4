"""Decoding with any cache gives the logits and tokens of decoding without one, for every toggle."""

import pytest
import torch
from decoding import (
    LONGROPE,
    NEW,
    PROMPT,
    STATIC,
    TOGGLES,
    build,
    draw_ids,
    generate,
    keeps_its_prompt,
    left_padded,
    model_of,
    relative,
    tiny,
    with_cache,
    without_cache,
)
from transformers import DynamicCache, QuantizedCache, StaticCache

from hf_variants import VariantsForCausalLM


@pytest.mark.parametrize("name", TOGGLES)
def test_cached_logits_equal_uncached(name):
    model, ids = model_of(name), draw_ids(2, PROMPT)
    rows, logits = without_cache(model, ids)
    for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=PROMPT + NEW)):
        cached_rows, cached_logits = with_cache(model, ids, cache)
        assert torch.equal(cached_rows, rows)
        assert relative(cached_logits, logits) < 1e-5


@pytest.mark.parametrize("name", TOGGLES)
def test_generate_with_every_cache_equals_decoding_by_hand(name):
    model, ids = model_of(name), draw_ids(2, PROMPT)
    rows, _ = without_cache(model, ids)
    for options in ({}, {"use_cache": False}, STATIC):
        assert torch.equal(generate(model, ids, **options), rows), options


@pytest.mark.parametrize("name", TOGGLES)
def test_a_left_padded_batch_generates_the_rows_of_single_prompts(name):
    model = model_of(name)
    ids, mask = left_padded(draw_ids(2, PROMPT), [3, 0])
    singles = [generate(model, ids[:1, 3:], max_new_tokens=11), generate(model, ids[1:], max_new_tokens=11)]
    for options in ({}, STATIC):
        rows = generate(model, ids, attention_mask=mask, max_new_tokens=11, **options)
        assert torch.equal(rows[0, 3:], singles[0][0]) and torch.equal(rows[1], singles[1][0]), options


@pytest.mark.parametrize("name", TOGGLES)
def test_a_packed_prompt_is_continued_from_its_last_document_alone(name):
    model, ids = model_of(name), draw_ids(1, 11)
    position_ids = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]])
    alone = generate(model, ids[:, 4:], max_new_tokens=11)[:, 7:]
    for options in ({}, STATIC):
        packed = generate(model, ids, position_ids=position_ids, max_new_tokens=11, **options)[:, 11:]
        assert torch.equal(packed, alone), options


@pytest.mark.parametrize("name", [name for name in TOGGLES if not keeps_its_prompt(name)])
def test_a_reused_prefix_gives_the_rows_of_a_fresh_cache(name):
    model, ids = model_of(name), draw_ids(1, 12)
    rows = generate(model, ids, max_new_tokens=8)
    for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=20)):
        with torch.no_grad():
            model(ids[:, :6], past_key_values=cache, use_cache=True)
        reused = generate(model, ids, past_key_values=cache, max_new_tokens=8, disable_compile=True)
        assert torch.equal(reused, rows), type(cache).__name__


@pytest.mark.parametrize("name", TOGGLES)
@torch.no_grad()
def test_a_cropped_cache_forgets_what_was_cropped(name):
    model, ids, rejected = model_of(name), draw_ids(1, 12), draw_ids(1, 4, seed=9)
    logits = []
    for tries in (1, 0):
        cache = DynamicCache(config=model.config)
        cache.activate_past_recording()
        model(ids[:, :9], past_key_values=cache, use_cache=True)
        for _ in range(tries):
            model(rejected, past_key_values=cache, use_cache=True)
            cache.crop(-4)
        logits.append(model(ids[:, 9:], past_key_values=cache, use_cache=True).logits)
    assert relative(*logits) < 1e-5


@pytest.mark.parametrize("name", LONGROPE)
def test_b18_longrope_crosses_its_original_length_inside_generate(name):
    model = model_of(name)
    ids, mask = left_padded(draw_ids(2, 12), [2, 0])
    options = {"attention_mask": mask, "max_new_tokens": 12}
    rows = generate(model, ids, use_cache=False, **options)
    embeds = model.get_input_embeddings()(ids).detach()
    for cache in ({}, STATIC):
        assert torch.equal(generate(model, ids, **cache, **options), rows), cache
        assert torch.equal(generate(model, None, inputs_embeds=embeds, **cache, **options), rows[:, 12:]), cache
    beams = {**options, "num_beams": 3}
    rows = generate(model, ids, use_cache=False, **beams)
    for cache in ({}, STATIC):
        assert torch.equal(generate(model, ids, **cache, **beams), rows), cache


def test_b16_dynamic_keeps_the_frequencies_of_its_prompt():
    model, prompt = model_of("dynamic"), draw_ids(1, 20)
    base = build(tiny("gqa", rope_parameters={"rope_type": "default", "rope_theta": 100.0 * 2.0 ** (12 / 10)}))
    base.load_state_dict(model.state_dict())
    # factor 4, original 16, prompt 20: the base is theta * (4 * 20 / 16 - 3)^(d / (d - 2)) for every later token
    rows, logits = with_cache(model, prompt, DynamicCache(config=model.config))
    same_rows, same_logits = without_cache(base, prompt)
    assert torch.equal(rows, same_rows) and relative(logits, same_logits) < 1e-5


# transformers' fp8 cache keeps full attention layers only
FULL = [name for name in TOGGLES if set(tiny(name).layer_types) == {"full_attention"}]
QUANTIZED = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}


@pytest.mark.parametrize("name", FULL)
@torch.no_grad()
def test_quantized_cache_stays_near_the_exact_one(name):
    model, ids = model_of(name), draw_ids(2, PROMPT)
    exact = model(ids, use_cache=False).logits
    cache = QuantizedCache(backend="fp8", config=model.config)
    model(ids[:, :-1], past_key_values=cache, use_cache=True)
    near = model(ids[:, -1:], past_key_values=cache, use_cache=True).logits[:, -1]
    assert relative(near, exact[:, -1]) < 0.4  # rounding to 8 bits may send a token to another expert
    assert generate(model, ids, **QUANTIZED).shape == (2, PROMPT + NEW)


@pytest.mark.parametrize("name", ["sliding", "alternating", "chunked", "mla_sliding"])
def test_quantized_cache_of_windows_is_refused(name):
    with pytest.raises(ValueError, match="only full attention layers"):
        generate(model_of(name), draw_ids(1, 5), **QUANTIZED)


@pytest.mark.parametrize("name", ["sliding", "chunked", "mla_sliding"])
def test_static_cache_of_windows_alone_refuses_what_it_cannot_remember(name):
    model = model_of(name)
    cache = StaticCache(config=model.config, max_cache_len=20)
    with pytest.raises(ValueError, match="StaticCache of sliding layers alone"):
        model(draw_ids(1, 6), position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), past_key_values=cache, use_cache=True)


ONES = {
    "window": {"sliding_window": 1},
    "chunk": {"attention_chunk_size": 1},
    "window and chunk": {
        **{"sliding_window": 1, "attention_chunk_size": 5},
        "layer_types": ["sliding_attention", "chunked_attention"],
    },
}


@pytest.mark.parametrize("options", [{}, STATIC, {"num_beams": 2}], ids=str)
@pytest.mark.parametrize("keys", ONES.values(), ids=ONES)
def test_a_window_of_one_generates(keys, options):
    model, ids = build(tiny("gqa", **keys)), draw_ids(2, PROMPT)
    beams = {key: value for key, value in options.items() if key == "num_beams"}
    assert torch.equal(generate(model, ids, **options), generate(model, ids, use_cache=False, **beams))


def test_continuous_batching_is_refused():
    model = model_of("gqa")
    for call in (model.generate_batch, model.init_continuous_batching):
        with pytest.raises(ValueError, match="continuous batching is not supported"):
            call([[1, 2, 3]])
    with pytest.raises(ValueError, match="continuous batching"):
        VariantsForCausalLM.generate_batch(model, [[1, 2, 3]])
