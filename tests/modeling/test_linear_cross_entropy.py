"""The fused loss of a linear head equals the plain one, in value and in every gradient, whatever the chunk."""

import pytest
import torch

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.modeling import linear_cross_entropy, logit_chunks
from hf_variants.modeling.linear_cross_entropy import LinearCrossEntropy
from hf_variants.modeling.plain_linear import is_plain_linear

VOCABULARY = 97
HEADS = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "biased, capped and scaled": {"lm_head_bias": True, "final_logit_softcapping": 3.0, "logits_scaling": 2.0},
}


def build(**toggles):
    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = VariantsForCausalLM(VariantsConfig(**shape, **toggles)).train()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("name", HEADS)
def test_equals_plain_cross_entropy(name, rows, monkeypatch):
    monkeypatch.setattr(logit_chunks, "CHUNK_BYTES", {"cpu": 4 * VOCABULARY * rows})
    monkeypatch.setattr(linear_cross_entropy, "CACHED_ELEMENTS", VOCABULARY * 3)
    model = build(**HEADS[name])
    ids = torch.randint(0, VOCABULARY, (3, 20))
    labels = ids.clone()
    labels[0, :9] = -100
    loss = model(ids, labels=labels).loss
    loss.backward()
    grads = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    logits = model(ids).logits
    plain = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    plain.backward()
    assert abs(loss.item() - plain.item()) < 1e-5
    for key, parameter in model.named_parameters():
        assert (grads[key] - parameter.grad).abs().max() < 1e-6, key


@pytest.mark.parametrize("count", [1, 299, 1023, 1024, 1025, 1300, 5000])
def test_chunks_are_of_one_size(count, monkeypatch):
    monkeypatch.setattr(logit_chunks, "CHUNK_BYTES", {"cpu": 4 * VOCABULARY * 341})
    step = logit_chunks.chunk_rows(count, VOCABULARY, 8, 4, "cpu", True)
    chunks = -(-count // step)
    assert step <= 341 * 1.25 and step * chunks - count < chunks and chunks <= max(1, -(-count // 341))
    # one chunk of narrow logits takes what its fp32 sum would have taken
    narrow = logit_chunks.chunk_rows(count, VOCABULARY, 8, 2, "cpu", True)
    assert narrow == count or narrow * VOCABULARY * 2 <= 1.25 * (4 * VOCABULARY * 341)


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("served", [False, True])
def test_bf16_and_other_kernels_give_the_same(chunk, served, monkeypatch):
    monkeypatch.setattr(logit_chunks, "CHUNK_BYTES", {"cpu": 2 * VOCABULARY * chunk})
    if served and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("torch without oneDNN")
    monkeypatch.setattr(linear_cross_entropy, "is_served", lambda x, weight: served)
    torch.manual_seed(0)
    states, weight = torch.randn(60, 32), torch.randn(VOCABULARY, 32) * 0.2
    targets = torch.randint(0, VOCABULARY, (60,))
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        ours, plain = ([part.to(dtype).requires_grad_() for part in (states, weight)] for _ in range(2))
        loss = LinearCrossEntropy.apply(*ours, None, targets, 1, None)
        expected = torch.nn.functional.cross_entropy(plain[0].float() @ plain[1].float().t(), targets, reduction="sum")
        assert abs(loss - expected) <= bound * expected
        for found, wanted in zip(torch.autograd.grad(loss, ours), torch.autograd.grad(expected, plain), strict=True):
            assert (found - wanted).abs().max() <= bound * wanted.abs().max()


def test_takes_the_general_way_for_a_head_that_is_more_than_linear():
    model = build()
    assert is_plain_linear(model.lm_head)
    model.lm_head.register_forward_hook(lambda module, args, out: out * 2)
    assert not is_plain_linear(model.lm_head)
    ids = torch.randint(0, VOCABULARY, (2, 12))
    loss = model(ids, labels=ids).loss
    plain = torch.nn.functional.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert abs(loss.item() - plain.item()) < 1e-5


def test_gradients_are_those_of_finite_differences():
    torch.manual_seed(0)
    states, weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((5, 4), (6, 4), (6,)))
    targets = torch.tensor([0, 5, -100, 2, 3])
    leaves = [tensor.requires_grad_() for tensor in (states, weight, bias)]
    LinearCrossEntropy.apply(*leaves, targets, 2.0, 3.0).backward()
    for tensor in leaves:
        index = (1,) * tensor.dim()
        moved = []
        for step in (1e-2, -1e-2):
            with torch.no_grad():
                tensor[index] += step
                moved.append(LinearCrossEntropy.apply(*leaves, targets, 2.0, 3.0).item())
                tensor[index] -= step
        assert abs((moved[0] - moved[1]) / 2e-2 - tensor.grad[index].item()) < 1e-3
