"""Beams, sampling, drafts and the smaller switches of generate: none of them sees a difference between caches."""

import pytest
import torch
from decoding import (
    FAMILIES,
    LONGROPE,
    PROMPT,
    STATIC,
    TOGGLES,
    build,
    draw_ids,
    every_toggle,
    generate,
    keeps_its_prompt,
    model_of,
    relative,
    tiny,
)

# dynamic stretches past the original length of 16: with a longer prompt it is stretched from the first step on
DRAFTED = ("gqa", "sliding", "alternating", "mla", "mla_alternating", "chunked", "alibi", "learned", "moe")
LENGTHS = ("dynamic", "mla_dynamic", "nested_dynamic", *LONGROPE, "mla_nested_longrope")


@every_toggle()
def test_beams_with_cache_equal_beams_without(name):
    model, ids = model_of(name), draw_ids(2, PROMPT)
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 6 if keeps_its_prompt(name) else 12}
    rows = generate(model, ids, use_cache=False, **options)
    assert rows.shape == (4, PROMPT + options["max_new_tokens"])
    for cache in ({}, STATIC):
        try:
            assert torch.equal(generate(model, ids, **cache, **options), rows), cache
        except ValueError as error:
            assert "StaticCache of sliding layers alone" in str(error) and cache


@every_toggle()
def test_sampling_with_cache_equals_sampling_without(name):
    model, ids, rows = model_of(name), draw_ids(2, PROMPT), []
    for options in ({}, {"use_cache": False}):
        torch.manual_seed(3)
        rows.append(generate(model, ids, do_sample=True, top_k=20, num_return_sequences=3, **options))
    assert rows[0].shape[0] == 6 and torch.equal(*rows)


@pytest.mark.parametrize("prompt", [3, 6])
@every_toggle(fast=(*DRAFTED, *LENGTHS))
def test_drafted_decoding_equals_greedy(name, prompt):
    model = model_of(name)
    # a repeated prompt, so that prompt lookup finds drafts; 9 tokens stay below the original length of 16, 18 lie above
    ids = draw_ids(1, prompt).repeat(1, 3)
    rows = generate(model, ids, max_new_tokens=14)
    assistant = build(tiny(name), seed=5)
    for draft in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": assistant}, {"assistant_model": model}):
        assert torch.equal(generate(model, ids, max_new_tokens=14, **draft), rows), list(draft)


@pytest.mark.parametrize("name", LENGTHS)
def test_drafted_decoding_of_a_padded_prompt_equals_greedy(name):
    model, ids = model_of(name), draw_ids(1, 4).repeat(1, 3)
    ids[:, :3] = 0
    mask = (ids != 0).long()
    options = {"attention_mask": mask, "max_new_tokens": 14}
    rows = generate(model, ids, **options)
    for draft in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": model}):
        assert torch.equal(generate(model, ids, **options, **draft), rows), list(draft)


def test_an_assistant_that_agrees_saves_forwards_of_the_model():
    """The drafts are cut for `longrope` at its boundary only: elsewhere several tokens pass at once."""
    model, ids, calls = build(tiny("longrope")), draw_ids(1, PROMPT), []
    hook = model.register_forward_pre_hook(lambda module, args, kwargs: calls.append(kwargs), with_kwargs=True)
    assistant = build(tiny("longrope"))
    generate(model, ids, max_new_tokens=20, assistant_model=assistant)
    hook.remove()
    assert len(calls) < 12


@pytest.mark.parametrize("name", FAMILIES)
def test_generate_from_embeddings_equals_generate_from_tokens(name):
    model, ids = model_of(name), draw_ids(2, PROMPT)
    embeds = model.get_input_embeddings()(ids).detach()
    new = generate(model, ids)[:, PROMPT:]
    for options in ({}, {"use_cache": False}, STATIC):
        assert torch.equal(generate(model, None, inputs_embeds=embeds, **options), new), options


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_logits_to_keep_are_the_last_of_all_logits(name):
    model, ids = model_of(name), draw_ids(2, PROMPT)
    whole = model(ids).logits
    assert relative(model(ids, logits_to_keep=2).logits, whole[:, -2:]) < 1e-5
    assert relative(model(ids, logits_to_keep=torch.tensor([1, 4])).logits, whole[:, [1, 4]]) < 1e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_of_generate_are_the_logits_of_the_steps(name):
    model, ids = model_of(name), draw_ids(2, PROMPT)
    out = generate(model, ids, return_dict_in_generate=True, output_logits=True, output_hidden_states=True)
    with torch.no_grad():
        logits = model(out.sequences[:, :-1], use_cache=False).logits[:, PROMPT - 1 :]
    assert relative(torch.stack(out.logits, dim=1), logits) < 1e-5
    assert len(out.hidden_states) == len(out.logits) and len(out.hidden_states[0]) == 1 + tiny(name).num_hidden_layers


def test_every_family_is_a_toggle():
    assert set(FAMILIES) <= set(TOGGLES) and set(LENGTHS) <= set(TOGGLES)
