"""Packed rows run document by document: what a mask gives, in value and gradient, at the cost of the documents."""

import pytest
import torch

from hf_variants.modeling import variants_model
from tests.modeling.helpers import pack
from tests.variants import build, draw_ids, far, tiny

NAMES = ["gqa", "mla", "sliding", "sinks", "softcap", "alibi", "alibi_terms", "sinks_softcap_sliding", "moe", "dynamic"]
DTYPES = {"fp32": (torch.float32, 1e-5), "bf16": (torch.bfloat16, 1e-1)}


def run(model, ids, positions):
    model.zero_grad()
    out = model(input_ids=ids, position_ids=positions, use_cache=False, skip_logits=False)
    out.logits.float().square().mean().backward()
    return out.logits.detach(), {name: part.grad.clone() for name, part in model.named_parameters()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_equals_a_mask(name, dtype, monkeypatch):
    kind, bound = DTYPES[dtype]
    model = build(tiny(name)).to(kind)
    (ids, positions, _), other = pack((5, 1, 9, 3)), pack((7, 11), seed=2)
    ids, positions = torch.cat((ids, other[0])), torch.cat((positions, other[1]))
    logits, gradients = run(model, ids, positions)
    monkeypatch.setattr(variants_model, "backend_packs", lambda *args: False)
    expected, expected_gradients = run(model, ids, positions)
    assert far(logits, expected) <= bound * max(1, expected.float().abs().max().item())
    for key, gradient in expected_gradients.items():
        assert far(gradients[key], gradient) <= bound * max(1e-2, gradient.float().abs().max().item()), key


@pytest.mark.parametrize("backend", ["eager", "flex_attention"])
@torch.no_grad()
def test_other_backends_keep_documents_apart(backend):
    model, (ids, positions, _) = build(tiny("alternating")), pack((5, 9, 3))
    expected = model(ids, position_ids=positions).logits
    model.set_attn_implementation(backend)
    assert far(model(ids, position_ids=positions).logits, expected) < 1e-5


@torch.no_grad()
def test_one_token_of_experts_reads_the_chosen_ones():
    model, state = build(tiny("moe_biases")), torch.randn(1, 32)
    experts = model.model.layers[0].mlp.experts
    index, weights = torch.tensor([[3, 1]]), torch.tensor([[0.25, 0.5]])
    expected = experts.forward(state, index, weights)
    for name in experts._parameters:
        getattr(experts, name)[[0, 2]] = float("nan")
    assert far(experts.serve_one(state, index[0], weights[0]), expected) < 1e-6
    assert far(experts(state, index, weights), expected) < 1e-6


def test_a_packed_row_is_continued_from_its_cache():
    model, (ids, positions, _) = build(tiny("gqa")), pack((5, 9))
    whole = model(torch.cat((ids, draw_ids(1, 1)), 1), position_ids=torch.cat((positions, torch.tensor([[9]])), 1)).logits
    first = model(ids, position_ids=positions, use_cache=True)
    last = model(
        draw_ids(1, 1), position_ids=torch.tensor([[9]]), past_key_values=first.past_key_values, use_cache=True
    ).logits
    assert far(last[:, -1], whole[:, -1]) < 1e-5
