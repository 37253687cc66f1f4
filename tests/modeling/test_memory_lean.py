"""What recomputes in the backward pass gives the plain outputs and gradients, and steps aside for layers that are more."""

import pytest
import torch

from hf_variants.modeling import feed_forward, norms
from hf_variants.modeling.memory_lean import GatedMLPFunction, RMSNormFunction
from tests.variants import FEED_FORWARD, NORM, TOPOLOGY, build, draw_ids, far, tiny

NAMES = ["gqa", "qk_head", "mla_q_lora", *NORM, *FEED_FORWARD, *TOPOLOGY, "moe_shared"]
DTYPES = {"fp32": (torch.float32, 1e-5), "bf16": (torch.bfloat16, 4e-2)}


def plainly(monkeypatch):
    for module in (norms, feed_forward):
        monkeypatch.setattr(module, "records_gradients", lambda *tensors: False)


def loss_and_gradients(model, ids, autocast=False, **inputs):
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(input_ids=ids, labels=ids, use_cache=False, **inputs).loss
    loss.backward()
    return loss.detach(), {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}


def assert_equal(found, expected, bound):
    assert abs(found[0] - expected[0]) <= bound * max(1, abs(expected[0]))
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert far(found[1][name], gradient) <= bound * max(1e-2, gradient.float().abs().max().item()), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_plain_form(name, dtype, monkeypatch):
    kind, bound = DTYPES[dtype]
    model, ids = build(tiny(name)).to(kind).train(), draw_ids(2, 9)
    found = loss_and_gradients(model, ids)
    plainly(monkeypatch)
    assert_equal(found, loss_and_gradients(model, ids), bound)


@pytest.mark.parametrize("name", ["gqa", "swiglu_clamped", "rmsnorm_unit_offset"])
def test_autocast_and_checkpointing_keep_the_gradients(name, monkeypatch):
    model, ids = build(tiny(name)).train(), draw_ids(2, 9)
    cast = loss_and_gradients(model, ids, autocast=True)
    whole = loss_and_gradients(model, ids)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_equal(loss_and_gradients(model, ids), whole, 1e-5)
    model.gradient_checkpointing_disable()
    plainly(monkeypatch)
    assert_equal(cast, loss_and_gradients(model, ids, autocast=True), 4e-2)


@pytest.mark.parametrize("name", ["gqa", "gated_bias", "rmsnorm_non_parametric"])
def test_a_gradient_can_be_differentiated_again(name, monkeypatch):
    model, ids = build(tiny(name)), draw_ids(2, 5)
    # torch's fused attention has no second derivative, natively neither
    model.set_attn_implementation("eager")
    weights = [part for key, part in model.named_parameters() if "norm" in key or "mlp" in key]

    def penalty():
        with torch.enable_grad():
            loss = model(ids, skip_logits=False).logits.square().mean()
            first = torch.autograd.grad(loss, weights, create_graph=True)
            return torch.autograd.grad(sum(part.square().sum() for part in first), weights)

    found = penalty()
    plainly(monkeypatch)
    for ours, plain in zip(found, penalty(), strict=True):
        assert far(ours, plain) <= 1e-4 * max(1e-2, plain.abs().max().item())


def saved_by(call):
    """Numbers that autograd keeps of `call`, each storage once."""
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.update({t.data_ptr(): t.numel()}) or t, lambda t: t):
        call()
    return sum(kept.values())


def test_less_is_kept_of_norms_and_gated_feed_forwards(monkeypatch):
    model = build(tiny("gqa", intermediate_size=64)).train()
    mlp, norm, x = model.model.layers[0].mlp, model.model.layers[0].input_layernorm, torch.randn(7, 32, requires_grad=True)
    weights = sum(part.numel() for part in mlp.parameters())
    assert saved_by(lambda: mlp(x)) == weights + x.numel() + 2 * 7 * 64
    assert saved_by(lambda: norm(x)) == 32 + x.numel()
    plainly(monkeypatch)
    assert saved_by(lambda: mlp(x)) == weights + x.numel() + 4 * 7 * 64


@pytest.mark.parametrize("part", ["gate_proj", "up_proj", "down_proj"])
def test_a_hooked_or_wrapped_linear_is_called(part):
    model, ids = build(tiny("gqa")).train(), draw_ids(1, 4)
    seen = []
    layer = getattr(model.model.layers[0].mlp, part)
    handle = layer.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    model(input_ids=ids, labels=ids)
    assert len(seen) == 1
    handle.remove()

    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    before = model(input_ids=ids, labels=ids).loss
    doubled = Doubled(layer.in_features, layer.out_features, bias=False)
    doubled.weight = layer.weight
    setattr(model.model.layers[0].mlp, part, doubled)
    assert model(input_ids=ids, labels=ids).loss != before


def test_nothing_is_recorded_where_nothing_is_trained():
    model, x = build(tiny("gqa")), torch.randn(2, 3, 32)
    layer = model.model.layers[0]
    with torch.no_grad():
        assert layer.mlp(x).grad_fn is None and layer.input_layernorm(x).grad_fn is None
    trained = layer.mlp(x.requires_grad_()).grad_fn
    assert type(trained).__name__ == f"{GatedMLPFunction.__name__}Backward"
    assert type(layer.input_layernorm(x).grad_fn).__name__ == f"{RMSNormFunction.__name__}Backward"
