"""A gated feed-forward that writes over its gate gives the plain form's numbers bit by bit, and steps aside for listeners."""

import pytest
import torch

from hf_variants.modeling import feed_forward
from hf_variants.modeling.feed_forward import GatedActivation
from tests.variants import build, draw_ids, tiny

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LISTENERS = ("mlp", "gate_proj", "up_proj", "down_proj", "combine", "act")


@pytest.fixture
def overwritten(monkeypatch):
    """Shapes of the gates that were overwritten; inputs of any size are large."""
    seen, over = [], GatedActivation.activate_over
    monkeypatch.setattr(feed_forward, "LARGE", 1)
    monkeypatch.setattr(GatedActivation, "activate_over", lambda self, gate: seen.append(gate.shape) or over(self, gate))
    return seen


def plain_logits(model, ids, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(feed_forward, "LARGE", 1 << 60)
        return model(ids).logits


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gqa", "gated_bias", "moe_shared"])
def test_the_numbers_are_those_of_the_plain_form(name, dtype, mode, overwritten, monkeypatch):
    model, ids = build(tiny(name)).to(DTYPES[dtype]), draw_ids(2, 9)
    for cast in (False, True):
        with mode(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
            expected = plain_logits(model, ids, monkeypatch)
            assert not overwritten
            assert torch.equal(model(ids).logits, expected) and overwritten
        overwritten.clear()


@pytest.mark.parametrize("act", ["silu", "swish", "gelu", "gelu_new", "relu", "relu2", "sigmoid", "linear", "hardswish"])
def test_every_activation_keeps_its_numbers(act, overwritten, monkeypatch):
    model, ids = build(tiny("gqa", hidden_act=act)), draw_ids(2, 9)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, plain_logits(model, ids, monkeypatch)) and overwritten


@pytest.mark.parametrize("act", ["silu", "swish"])
def test_silu_stays_in_its_memory(act):
    gate = torch.randn(3, 64)
    expected = torch.nn.functional.silu(gate)
    assert torch.equal(GatedActivation(feed_forward.activation(act)).activate_over(gate), expected)
    assert torch.equal(gate, expected)


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_hook_keeps_what_it_saw(listener, overwritten, monkeypatch):
    model, ids, kept = build(tiny("gqa")), draw_ids(2, 9), []

    def keep(module, args, out):
        kept.extend((part, part.clone()) for part in (*args, out) if torch.is_tensor(part))

    listeners = [module for name, module in model.named_modules() if name.endswith(f".{listener}")]
    assert listeners
    for module in listeners:
        module.register_forward_hook(keep)
    with torch.no_grad():
        expected = plain_logits(model, ids, monkeypatch)
        assert torch.equal(model(ids).logits, expected)
    assert len(kept) >= 4 * len(listeners) and all(torch.equal(*both) for both in kept)
    assert bool(overwritten) == (listener == "mlp")


def test_what_is_put_in_later_acts(overwritten, monkeypatch):
    """An activation, or the whole product, that stands in for the one the model was built with."""
    model, ids = build(tiny("gqa")), draw_ids(2, 9)
    with torch.no_grad():
        before = model(ids).logits
        for put_in, overwrites in [(GatedActivation(torch.nn.ReLU()), True), (feed_forward.ClampedSwiGLU(1.0, 1.7), False)]:
            for layer in model.model.layers:
                layer.mlp.combine = put_in
            overwritten.clear()
            after = model(ids).logits
            assert bool(overwritten) == overwrites and not torch.equal(after, before)
            assert torch.equal(after, plain_logits(model, ids, monkeypatch))
        layer.mlp.combine = GatedActivation(torch.nn.SiLU())
        layer.mlp.combine.act = torch.nn.ReLU()
        assert torch.equal(model(ids).logits, plain_logits(model, ids, monkeypatch))


def test_gradients_graphs_dropout_clamps_and_small_inputs_take_the_plain_form(overwritten, monkeypatch):
    ids = draw_ids(2, 9)
    model = build(tiny("gqa"))
    model.requires_grad_(False)(ids)
    for other in (tiny("swiglu_clamped"), tiny("gqa", activation_dropout=0.5), tiny("gqa", hidden_act="xielu")):
        with torch.no_grad():
            build(other)(ids)
    mlp, states = model.model.layers[0].mlp, torch.randn(2, 9, model.config.hidden_size)
    with torch.no_grad():
        exported = torch.export.export(mlp, (states,)).module()
        assert not overwritten and torch.equal(exported(states), mlp(states))
        overwritten.clear()
        monkeypatch.setattr(feed_forward, "LARGE", 1 << 18)
        model(ids)
    assert not overwritten
