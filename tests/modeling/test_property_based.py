"""Random pairs and triples of toggles: whatever config is not refused holds every promise of the family."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, StaticCache

from hf_variants import VariantsConfig, VariantsForCausalLM, VariantsForMaskedLM
from tests.modeling.helpers import TOLERANCE, documents_alone, logits_of, pack, padded, scaled_far
from tests.variants import (
    ATTENTION,
    BASE,
    FEED_FORWARD,
    MOE,
    NORM,
    OUTPUT,
    POSITIONS,
    TOGGLES,
    TOPOLOGY,
    build,
    draw_ids,
    tiny,
)

GROUPS = (ATTENTION, ATTENTION, POSITIONS, TOPOLOGY, NORM, FEED_FORWARD | MOE, OUTPUT)
NAMES = st.tuples(*(st.sampled_from([None, *group]) for group in GROUPS))


def mixed(names, is_causal, backend="sdpa"):
    """The config of several toggles at once, or None where the family refuses the mixture with a reason."""
    keys = dict(BASE)
    for name in names:
        keys.update(TOGGLES.get(name, {}))
    try:
        config = VariantsConfig(**keys, is_causal=is_causal)
    except ValueError as refusal:
        assert len(str(refusal)) > 40
        return None
    config._attn_implementation = backend
    return config


@settings(max_examples=60)
@given(NAMES, st.booleans(), st.sampled_from(["sdpa", "eager"]))
def test_padded_packed_and_cached_rows_equal_plain_ones(names, is_causal, backend):
    config = mixed(names, is_causal, backend)
    if config is None:
        return
    model, ids = build(config), draw_ids(1, 21)
    full = logits_of(model, ids)
    row, mask = padded(ids, list(range(4, 25)), 25)
    batch, mask = torch.cat((row, draw_ids(1, 25, seed=2), 0 * row)), torch.cat((mask, torch.ones_like(mask), 0 * mask))
    out = logits_of(model, batch, attention_mask=mask)
    assert out.isfinite().all() and scaled_far(out[:1, 4:], full) <= 2 * TOLERANCE
    packed, positions, packed_mask = pack([6, 1, 18], pads=3)
    out = logits_of(model, packed, attention_mask=packed_mask, position_ids=positions)
    assert scaled_far(out[:, :25], documents_alone(model, packed, [6, 1, 18])) <= 2 * TOLERANCE
    follows_length = any(config.rope_of(key)["rope_type"] in ("dynamic", "longrope") for key in config.rope_keys)
    if is_causal and not follows_length:
        for cache in (DynamicCache(config=config), StaticCache(config=config, max_cache_len=30)):
            cuts, pieces = [0, 5, 8, *range(9, 22)], []
            with torch.no_grad():
                for start, end in zip(cuts, cuts[1:], strict=False):
                    pieces.append(model(ids[:, start:end], past_key_values=cache, use_cache=True).logits)
            assert scaled_far(torch.cat(pieces, dim=1), full) <= 2 * TOLERANCE


@settings(max_examples=60)
@given(NAMES, st.booleans())
def test_one_step_follows_a_finite_gradient_of_every_parameter(names, is_causal):
    config = mixed(names, is_causal)
    if config is None:
        return
    model, ids = build(config).train(), draw_ids(2, 12)
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    # a step against the gradient lowers the loss by its squared norm; routers jump, so their loss is not compared
    if config.has_experts:
        return
    squared = sum(parameter.grad.square().sum() for parameter in model.parameters()).item()
    step = 1e-2 / squared
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= step * parameter.grad
        fall = (loss - model(ids, labels=ids).loss).item()
    assert fall == pytest.approx(step * squared, rel=0.15)


@settings(max_examples=20)
@given(NAMES, st.booleans())
def test_every_mixture_builds_on_meta_and_reloads_bitwise(tmp_path_factory, names, is_causal):
    config = mixed(names, is_causal)
    if config is None:
        return
    model_class = VariantsForCausalLM if is_causal else VariantsForMaskedLM
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in model_class(config).state_dict().items()}
    model, directory = build(config), tmp_path_factory.mktemp("saved")
    assert shapes == {key: value.shape for key, value in model.state_dict().items()}
    model.save_pretrained(directory)
    again = model_class.from_pretrained(directory)
    assert all(torch.equal(again.state_dict()[key], value) for key, value in model.state_dict().items())
    ids = draw_ids(1, 20)
    # equal weights at other addresses: grouped kernels round the last bit by alignment
    assert scaled_far(logits_of(again, ids), logits_of(model, ids)) <= TOLERANCE


@pytest.mark.parametrize(
    "keys",
    [
        {"n_group": 4, "topk_group": 1, "num_experts_per_tok": 4},
        {"n_group": 8, "topk_group": 8, "num_experts_per_tok": 2, "router_scoring": "sigmoid"},
        {"n_group": 3},
        {"n_group": 2, "topk_group": 3},
        {"num_experts_per_tok": 9},
        {"num_experts_per_tok": 0},
    ],
)
def test_b57_impossible_expert_groups_are_refused_when_the_config_is_made(keys):
    with pytest.raises(ValueError, match="n_group|num_experts_per_tok"):
        VariantsConfig(**{**BASE, "num_experts": 8, **keys})


def test_b57_heads_that_are_no_whole_groups_are_refused_when_the_config_is_made():
    with pytest.raises(ValueError, match="num_attention_heads=4 is not a multiple of num_key_value_heads=3"):
        VariantsConfig(**{**BASE, "num_key_value_heads": 3})


@pytest.mark.parametrize("name", TOGGLES)
def test_doubles_run_and_confirm_single_precision(name):
    model, ids = build(tiny(name)), draw_ids(1, 20)
    single = logits_of(model, ids)
    assert scaled_far(logits_of(model.double(), ids).float(), single) <= TOLERANCE
