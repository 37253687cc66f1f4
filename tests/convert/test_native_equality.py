"""The definition of correct: a native model and its conversion are the same function, forwards and backwards.

Covers known failures B33-B36, B39, B56 and B67: head layouts, both RoPE forms, YaRN factors, tied heads, kinds of QK-norm,
fused projections.
"""

import copy

import pytest
import torch
from native_cases import CASE_IDS, CASES, native_model, token_ids

from hf_variants.convert import find_family, from_native, to_native
from hf_variants.convert.config_conversion import as_plain_dict
from hf_variants.convert.weight_rules import apply_rules

every_case = pytest.mark.parametrize(("family", "name"), CASES, ids=CASE_IDS)
TOLERANCE = 1e-5


def _pair(family, name):
    native = native_model(family, name)
    return native, from_native(native)


def _follows_length(model):
    rope = model.config.rope_parameters or {}
    return rope.get("rope_type") in ("dynamic", "longrope")


@every_case
@torch.no_grad()
def test_logits(family, name):
    native, ours = _pair(family, name)
    ids = token_ids(2, 14)
    expected = native(input_ids=ids).logits
    assert (ours(input_ids=ids).logits - expected).abs().max().item() <= TOLERANCE
    assert expected.std().item() > 0.1


@every_case
@torch.no_grad()
def test_greedy_generation(family, name):
    """Past the window (4 or 5), past the original length of LongRoPE (8), and up to that of dynamic scaling (8)."""
    native, ours = _pair(family, name)
    dynamic = (ours.config.rope_parameters or {}).get("rope_type") == "dynamic"
    ids = token_ids(2, 6)
    # Natively the keys of a dynamic cache are rotated by several bases once it grows beyond the original length.
    keywords = {"do_sample": False, "max_new_tokens": 2 if dynamic else 16}
    # Of the native classes Phi-3 alone drops its cache where LongRoPE switches; the others mix two rotations.
    caching = {"use_cache": family == "phi3" or "longrope" not in name}
    expected = native.generate(ids, attention_mask=torch.ones_like(ids), **caching, **keywords)
    assert ours.generate(ids, attention_mask=torch.ones_like(ids), **keywords).tolist() == expected.tolist()


@every_case
def test_loss_and_gradients(family, name, monkeypatch):
    native, ours = _pair(family, name)
    if family == "phimoe":
        # SparseMixer samples; natively one of its draws is drawn twice, which would shift all that follow
        monkeypatch.setattr(torch.Tensor, "uniform_", lambda self, *bounds: self)
    ids = token_ids(2, 14)
    labels = ids.masked_fill(ids % 7 == 0, -100)
    ids[0, 3] = ids[1, 5] = 0  # the pad as a visible token: its row is trained in some families and frozen in others
    expected, found = (_loss(model.train(), ids, labels) for model in (native, ours))
    assert abs(found.item() - expected.item()) <= TOLERANCE
    expected.backward()
    found.backward()
    _compare_gradients(native, ours)


def _loss(model, ids, labels):
    torch.manual_seed(0)
    return model(input_ids=ids, labels=labels).loss


def _compare_gradients(native, ours):
    trained = {name: p for name, p in native.named_parameters() if p.requires_grad}
    grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in trained.items()}
    mapped = apply_rules(find_family(native.config.model_type).weights, grads, ours.config)
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in ours.named_parameters()}
    assert found.keys() == mapped.keys()
    for name, grad in found.items():
        scale = max(1.0, mapped[name].abs().max().item())
        assert (grad - mapped[name]).abs().max().item() <= TOLERANCE * scale, name


@every_case
@torch.no_grad()
def test_left_padded_rows_equal_native_rows_alone(family, name):
    native, ours = _pair(family, name)
    lengths, width = (12, 7, 10), 12
    ids, mask = torch.zeros(3, width, dtype=torch.long), torch.zeros(3, width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, width - length :] = token_ids(1, length, seed=row)[0]
        mask[row, width - length :] = 1
    found = ours(input_ids=ids, attention_mask=mask).logits
    for row, length in enumerate(lengths):
        # A fresh copy per row: the native dynamic embedding remembers the longest row that it has seen.
        alone = copy.deepcopy(native)(input_ids=ids[row : row + 1, width - length :]).logits
        assert (found[row, width - length :] - alone[0]).abs().max().item() <= TOLERANCE


@every_case
def test_round_trip_is_bitwise(family, name):
    native, ours = _pair(family, name)
    back = to_native(ours)
    assert type(back) is type(native)
    assert not back.training
    assert as_plain_dict(back.config) == as_plain_dict(native.config)
    assert back.config.dtype == native.config.dtype
    before, after = native.state_dict(), back.state_dict()
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert torch.equal(tensor, after[key]), key
        assert tensor.dtype == after[key].dtype
    assert back.generation_config.to_dict() == native.generation_config.to_dict()


@every_case
@torch.no_grad()
def test_converted_model_is_saved_and_loaded(family, name, tmp_path):
    from transformers import AutoModelForCausalLM

    native, ours = _pair(family, name)
    ours.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, loaded.state_dict()[key]) for key, tensor in ours.state_dict().items())
    ids = token_ids(1, 9)
    assert (loaded(input_ids=ids).logits - ours(input_ids=ids).logits).abs().max().item() <= TOLERANCE
    assert as_plain_dict(to_native(loaded).config) == as_plain_dict(native.config)
