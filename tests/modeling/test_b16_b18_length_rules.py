"""B16, B18: the RoPE rules that follow the length of a row, `dynamic` and `longrope`.

A row's frequencies depend on its own real length alone. `dynamic` keeps the frequencies that its prompt chose, `longrope`
recomputes its cache when a row grows beyond the original length; so a cache never holds two rotations.
"""

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM, StaticCache

from tests.modeling.helpers import TOLERANCE, logits_of, model_of, padded, scaled_far
from tests.variants import BASE, LONG_4, ORIGINAL, POSITIONS, build, draw_ids, randomise, tiny

DYNAMIC = [name for name in POSITIONS if "dynamic" in name]
LONGROPE = [name for name in POSITIONS if "longrope" in name and name != "mla_nested_longrope"]
LONGER = ORIGINAL + 9


def steps(model, ids, prompt, cache=None, mask=None):
    """Logits of a prompt and of single steps after it, joined, and the cache."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    ends, pieces, start = [prompt, *range(prompt + 1, ids.shape[1] + 1)], [], 0
    with torch.no_grad():
        for end in ends:
            seen = None if mask is None else mask[:, :end]
            out = model(ids[:, start:end], attention_mask=seen, past_key_values=cache, use_cache=True)
            pieces.append(out.logits)
            start = end
    return torch.cat(pieces, dim=1), cache


def native(config_class, model_class, **extra):
    config = config_class(**{**BASE, **extra}, rms_norm_eps=1e-6)
    return randomise(model_class(config)).eval()


def dynamic_pair():
    """A native Llama and ours with the same weights. Native takes the original length from max_position_embeddings."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
    theirs = native(LlamaConfig, LlamaForCausalLM, max_position_embeddings=ORIGINAL, rope_parameters=dict(rope))
    ours = build(tiny("gqa", rope_parameters={**rope, "original_max_position_embeddings": ORIGINAL}))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def longrope_pair():
    """A native Phi3 and ours. Phi3 ties head_dim to hidden_size / heads and fuses projections; they are cut by hand here."""
    rope = {"rope_type": "longrope", "rope_theta": 100.0, **LONG_4, "original_max_position_embeddings": ORIGINAL}
    lengths = {"max_position_embeddings": 64, "original_max_position_embeddings": ORIGINAL}
    theirs = native(
        Phi3Config, Phi3ForCausalLM, rope_parameters={**rope, "factor": 4.0}, sliding_window=None, head_dim=8, **lengths
    )
    ours = build(tiny("gqa", rope_parameters=rope, head_dim=8))
    state = theirs.state_dict()
    for key in [key for key in state if "qkv_proj" in key or "gate_up_proj" in key]:
        fused, names, sizes = state.pop(key), ("gate_proj", "up_proj"), (40, 40)
        if "qkv_proj" in key:
            names, sizes = ("q_proj", "k_proj", "v_proj"), (4 * 8, 2 * 8, 2 * 8)
        for name, part in zip(names, fused.split(sizes), strict=True):
            state[key.replace("qkv_proj", name).replace("gate_up_proj", name)] = part
    ours.load_state_dict(state)
    return theirs, ours


@pytest.mark.parametrize("length", [5, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, LONGER, 50])
@pytest.mark.parametrize("pair", [dynamic_pair, longrope_pair])
def test_b16_b18_a_fresh_full_forward_equals_native(pair, length):
    theirs, ours = pair()
    ids = draw_ids(2, length)
    with torch.no_grad():
        assert scaled_far(logits_of(ours, ids), theirs(ids, use_cache=False).logits) <= TOLERANCE


@pytest.mark.parametrize("name", DYNAMIC + LONGROPE + ["mla_nested_longrope"])
def test_b16_b18_a_row_does_not_depend_on_batch_mates_or_earlier_calls(name):
    model, short, long = model_of(name), draw_ids(1, 9), draw_ids(1, LONGER, seed=4)
    before = logits_of(model, short), logits_of(model, long)
    row, mask = padded(short, list(range(LONGER - 9, LONGER)), LONGER)
    batch, mask = torch.cat((row, long)), torch.cat((mask, torch.ones_like(mask)))
    together = logits_of(model, batch, attention_mask=mask)
    assert scaled_far(together[:1, -9:], before[0]) <= TOLERANCE
    assert scaled_far(together[1:], before[1]) <= TOLERANCE
    steps(model, long, 4)
    assert torch.equal(logits_of(model, short), before[0]) and torch.equal(logits_of(model, long), before[1])


@pytest.mark.parametrize("prompt", [6, ORIGINAL, ORIGINAL + 3])
@pytest.mark.parametrize("name", DYNAMIC)
def test_b16_dynamic_decodes_with_the_frequencies_of_its_prompt(name, prompt):
    """Decoding equals one full forward of a model whose RoPE is fixed at the base that the prompt's length chose."""
    model, ids = model_of(name), draw_ids(2, LONGER)
    decoded, _ = steps(model, ids, prompt)
    config = tiny(name)
    ropes = config.rope_parameters.values() if config.rope_is_nested else [config.rope_parameters]
    for rope in ropes:
        if rope["rope_type"] == "dynamic":
            dim = config.rotary_head_dim
            grown = max(1.0, rope["factor"] * max(prompt, ORIGINAL) / ORIGINAL - (rope["factor"] - 1))
            theta = rope["rope_theta"] * grown ** (dim / (dim - 2))
            rope.clear()
            rope.update(rope_type="default", rope_theta=theta)
    assert scaled_far(decoded, logits_of(build(config), ids)) <= TOLERANCE


@pytest.mark.parametrize("prompt", [3, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1])
@pytest.mark.parametrize("name", LONGROPE)
def test_b18_longrope_decodes_as_at_once_across_the_boundary(name, prompt):
    """Every step equals the last logits of a full forward of that length, on both sides of the original length."""
    model, ids = model_of(name), draw_ids(2, ORIGINAL + 3)
    decoded, _ = steps(model, ids, prompt)
    for end in range(prompt, ids.shape[1] + 1):
        assert scaled_far(decoded[:, end - 1], logits_of(model, ids[:, :end])[:, -1]) <= TOLERANCE, end


@pytest.mark.parametrize("name", LONGROPE)
def test_b18_longrope_switches_strictly_beyond_the_original_length(name):
    model, ids = model_of(name), draw_ids(1, ORIGINAL + 1)
    at = logits_of(model, ids[:, :ORIGINAL])
    assert scaled_far(logits_of(model, ids[:, : ORIGINAL - 1]), at[:, :-1]) <= TOLERANCE
    assert scaled_far(logits_of(model, ids)[:, :-1], at) > 1e-2


@pytest.mark.parametrize("name", LONGROPE)
def test_b18_chunked_prefill_never_mixes_tables(name):
    model, ids = model_of(name), draw_ids(2, LONGER)
    full = logits_of(model, ids)
    for cuts in ([10], [10, 14], [ORIGINAL], [ORIGINAL + 1], [2, ORIGINAL - 1, ORIGINAL + 2]):
        cache, start = DynamicCache(config=model.config), 0
        with torch.no_grad():
            for end in [*cuts, LONGER]:
                out = model(ids[:, start:end], past_key_values=cache, use_cache=True)
                last, start = start, end
        assert out.logits.shape[1] == LONGER - last
        assert scaled_far(out.logits, full[:, last:]) <= TOLERANCE, cuts


@pytest.mark.parametrize("name", LONGROPE)
def test_b18_rows_cross_the_boundary_one_by_one_under_left_pads(name):
    model, pads, length = model_of(name), 5, ORIGINAL + 8
    short, long = draw_ids(1, length - pads), draw_ids(1, length, seed=4)
    row, mask = padded(short, list(range(pads, length)), length)
    batch, mask = torch.cat((row, long)), torch.cat((mask, torch.ones_like(mask)))
    decoded, _ = steps(model, batch, 9, mask=mask)
    for end in range(9, length + 1):
        assert scaled_far(decoded[1, end - 1], logits_of(model, long[:, :end])[0, -1]) <= TOLERANCE, end
        assert scaled_far(decoded[0, end - 1], logits_of(model, short[:, : end - pads])[0, -1]) <= TOLERANCE, end


@pytest.mark.parametrize("name", LONGROPE)
def test_b18_a_crop_back_over_the_boundary_is_undone(name):
    """Assisted decoding crops candidates away: keys rotated for a longer row must not stay."""
    model, ids = model_of(name), draw_ids(2, ORIGINAL + 3)
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()
    steps(model, ids, 8, cache)
    cache.crop(-8)
    assert cache.get_seq_length() == ORIGINAL - 5
    with torch.no_grad():
        out = model(ids[:, ORIGINAL - 5 : ORIGINAL - 3], past_key_values=cache, use_cache=True)
    assert scaled_far(out.logits, logits_of(model, ids[:, : ORIGINAL - 3])[:, -2:]) <= TOLERANCE


@pytest.mark.parametrize("name", DYNAMIC + LONGROPE)
def test_b18_beams_across_the_boundary_equal_beams_without_a_cache(name):
    model, ids = model_of(name), draw_ids(2, ORIGINAL - 3)
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    cached = model.generate(ids, use_cache=True, **options)
    if name in LONGROPE:
        assert cached.tolist() == model.generate(ids, use_cache=False, **options).tolist()
    else:
        assert cached[:1].tolist() == model.generate(ids[:1], **options).tolist()


@pytest.mark.parametrize("name", LONGROPE)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_b18_greedy_across_the_boundary_equals_greedy_without_a_cache(name, cache):
    model = model_of(name)
    row, mask = padded(draw_ids(1, ORIGINAL - 6), list(range(4, ORIGINAL - 2)), ORIGINAL - 2)
    ids, mask = torch.cat((row, draw_ids(1, ORIGINAL - 2, seed=8))), torch.cat((mask, torch.ones_like(mask)))
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    kind = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    expected = model.generate(ids, use_cache=False, **options)
    assert model.generate(ids, **kind, **options).tolist() == expected.tolist()


@pytest.mark.parametrize("name", DYNAMIC + LONGROPE)
def test_b16_b18_static_cache_equals_dynamic_cache(name):
    model, ids = model_of(name), draw_ids(2, LONGER)
    by_static, _ = steps(model, ids, 9, StaticCache(config=model.config, max_cache_len=LONGER + 3))
    assert scaled_far(by_static, steps(model, ids, 9)[0]) <= TOLERANCE
