"""The gradient of causal attention in blocks is that of the reference at any length, and what is not its business torch's."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from hf_variants.modeling import causal_gradient, windowed_attention
from hf_variants.modeling.attention_scores import eager_attention
from hf_variants.modeling.fused_attention import _CPU_SHARES_HEADS, sdpa_attention
from tests.variants import build, draw_ids, far, tiny

pytestmark = pytest.mark.skipif(not _CPU_SHARES_HEADS, reason="this torch copies shared heads on a CPU")


class Layer(torch.nn.Module):
    is_causal = True


def draw(batch, heads, kv_heads, length, width=16, dtype=torch.float32):
    torch.manual_seed(length)
    shapes = [(batch, length, n, width) for n in (heads, kv_heads, kv_heads)]
    return [torch.randn(shape, dtype=dtype).transpose(1, 2).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(
    "batch, heads, kv_heads, length", [(1, 9, 3, 512), (2, 4, 1, 513), (2, 4, 2, 700), (1, 6, 2, 1024), (1, 3, 1, 1111)]
)
def test_the_gradient_is_that_of_the_reference(batch, heads, kv_heads, length):
    states = draw(batch, heads, kv_heads, length)
    grad = torch.randn(batch, length, heads, 16)
    found = sdpa_attention(Layer(), *states, None, scaling=0.3)[0]
    eager = eager_attention(Layer(), *states, None, scaling=0.3)[0]
    plain = scaled_dot_product_attention(*states, is_causal=True, scale=0.3, enable_gqa=True).transpose(1, 2)
    assert torch.equal(found, plain) and far(found, eager) < 1e-5
    graph, pending = [], [found.grad_fn]
    while pending:
        graph.append(node := pending.pop())
        pending += [after for after, _ in node.next_functions if after is not None]
    assert any("CausalAttention" in node.name() for node in graph)
    for ours, reference in zip(
        torch.autograd.grad(found, states, grad), torch.autograd.grad(eager, states, grad), strict=True
    ):
        assert far(ours, reference) <= 1e-5 * reference.abs().max()


@pytest.mark.parametrize("name", ["gqa", "qk_head", "sliding"])
@pytest.mark.parametrize("packed", [False, True])
def test_whole_models_keep_their_gradients(name, packed, monkeypatch):
    taken = []
    monkeypatch.setattr(causal_gradient, "SHORTEST", 4)
    monkeypatch.setattr(causal_gradient, "LONGEST_BLOCK", 2)
    monkeypatch.setattr(windowed_attention, "SMALLEST_BLOCK", 4)
    real = causal_gradient.causal_gradient
    monkeypatch.setattr(causal_gradient, "causal_gradient", lambda *args: taken.append(1) or real(*args))
    model, ids = build(tiny(name)).train(), draw_ids(2, 21)
    places = torch.cat((torch.arange(13), torch.arange(8))).expand(2, -1) if packed else None

    def gradients(backend):
        model.set_attn_implementation(backend)
        model.zero_grad()
        model(input_ids=ids, labels=ids, position_ids=places, use_cache=False).loss.backward()
        return {key: part.grad.clone() for key, part in model.named_parameters() if part.grad is not None}

    found, count = gradients("sdpa"), len(taken)
    for key, reference in gradients("eager").items():
        assert far(found[key], reference) <= 1e-5 * max(1e-2, reference.abs().max().item()), key
    assert count and len(taken) == count


def test_what_is_not_its_business_is_left_to_torch():
    served, states = causal_gradient.serves, draw(1, 4, 2, 512)
    assert served(*states, True, 0.0)
    assert not served(*states, False, 0.0) and not served(*states, True, 0.1)
    assert not served(*(part.bfloat16() for part in states), True, 0.0)
    assert not served(*(part.detach() for part in states), True, 0.0)
    assert not served(*draw(1, 4, 4, 512), True, 0.0) and not served(*draw(1, 4, 2, 511), True, 0.0)
    assert not served(states[0], *(part[:, :, :400] for part in states[1:]), True, 0.0)
    with torch.no_grad():
        assert not served(*states, True, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert not served(*states, True, 0.0)


def test_another_kernel_of_torch_can_be_differentiated_twice():
    states = draw(1, 2, 1, 512, width=4)
    with sdpa_kernel(SDPBackend.MATH):
        out = sdpa_attention(Layer(), *states, None, scaling=0.3)[0]
        first = torch.autograd.grad(out.square().sum(), states[0], create_graph=True)[0]
        assert torch.autograd.grad(first.square().sum(), states[2])[0].abs().max() > 0


def test_a_second_derivative_is_an_error_and_a_kept_graph_is_not():
    states = draw(1, 4, 2, 512)
    out = sdpa_attention(Layer(), *states, None, scaling=0.3)[0].square().sum()
    once = torch.autograd.grad(out, states, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(once, torch.autograd.grad(out, states, create_graph=True), strict=True))
    with pytest.raises(RuntimeError):
        first = torch.autograd.grad(sdpa_attention(Layer(), *states, None, scaling=0.3)[0].sum(), states, create_graph=True)
        torch.autograd.grad(first[0].square().sum(), states)
