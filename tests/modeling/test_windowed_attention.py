"""Prefill through a window makes nothing of the size Q x K, and gives what a mask gives, in value and gradient."""

import pytest
import torch

from hf_variants.modeling import blockwise_attention, variants_model, windowed_attention
from tests.variants import build, draw_ids, far, tiny

NAMES = ["sliding", "alternating", "mla_sliding", "sinks_softcap_sliding", "alibi_terms", "mla_alternating", "nested_theta"]
DTYPES = {"fp32": (torch.float32, 1e-5), "bf16": (torch.bfloat16, 5e-2)}
LENGTH = 43


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(windowed_attention, "SMALLEST_BLOCK", 6)
    monkeypatch.setattr(blockwise_attention, "BLOCK_ELEMENTS", 600)


def run(model, ids):
    model.zero_grad()
    out = model(input_ids=ids, use_cache=False, skip_logits=False)
    out.logits.float().square().mean().backward()
    return out.logits.detach(), {name: part.grad.clone() for name, part in model.named_parameters()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 4, 9, 30])
@pytest.mark.parametrize("name", NAMES)
def test_equals_a_mask(name, window, dtype, monkeypatch):
    kind, bound = DTYPES[dtype]
    model, ids = build(tiny(name, sliding_window=window)).to(kind), draw_ids(2, LENGTH)
    logits, gradients = run(model, ids)
    monkeypatch.setattr(variants_model, "backend_windows", lambda *args: False)
    expected, expected_gradients = run(model, ids)
    assert far(logits, expected) <= bound * max(1, expected.float().abs().max().item())
    for key, gradient in expected_gradients.items():
        assert far(gradients[key], gradient) <= bound * max(1e-2, gradient.float().abs().max().item()), key


@pytest.mark.parametrize("backend", ["eager", "flex_attention"])
@torch.no_grad()
def test_other_backends_window_too(backend):
    model, ids = build(tiny("alternating")), draw_ids(1, LENGTH)
    expected = model(ids).logits
    model.set_attn_implementation(backend)
    assert far(model(ids).logits, expected) < 1e-5


@pytest.mark.parametrize("name", ["sliding", "sinks_softcap_sliding", "mla_sliding"])
@torch.no_grad()
def test_decoding_goes_on_behind_a_windowed_prompt(name):
    model, ids = build(tiny(name)), draw_ids(2, LENGTH)
    whole = model(ids, use_cache=False).logits
    first = model(ids[:, :-5], use_cache=True)
    rest = model(ids[:, -5:], past_key_values=first.past_key_values, use_cache=True).logits
    assert far(torch.cat((first.logits, rest), dim=1), whole) < 1e-5


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(part, torch.Tensor):
                self.elements = max(self.elements, part.untyped_storage().nbytes() // max(part.element_size(), 1))
        return out


@pytest.mark.parametrize("name", ["sliding", "sinks_softcap_sliding", "mla_sliding"])
@torch.no_grad()
def test_nothing_of_the_size_of_all_pairs_is_made(name, monkeypatch):
    monkeypatch.setattr(blockwise_attention, "BLOCK_ELEMENTS", 16 * 60 * 4)
    length = 600
    model, ids = build(tiny(name, sliding_window=8, max_position_embeddings=1024)), draw_ids(1, length)
    with Largest() as largest:
        model(ids, use_cache=False, logits_to_keep=1)
    assert largest.elements < length * length / 2
