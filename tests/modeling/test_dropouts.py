"""What is dropped inside feed-forwards and behind the last norm: in training alone, at the rate that is set."""

import pytest
import torch

from hf_variants import VariantsModel
from tests.variants import build, draw_ids, far, tiny


@pytest.mark.parametrize("name", ["plain", "gqa"])
def test_activations_and_last_states_are_dropped_in_training(name):
    model, seen = build(tiny(name, activation_dropout=0.5, final_dropout=0.25), VariantsModel), []
    plain = build(tiny(name), VariantsModel)
    model.layers[1].mlp.down_proj.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    ids = draw_ids(4, 16)
    assert far(model(ids).last_hidden_state, plain(ids).last_hidden_state) < 1e-6
    assert (seen.pop() == 0).float().mean() < 0.01
    torch.manual_seed(0)
    states = model.train()(ids).last_hidden_state
    assert 0.4 < (seen.pop() == 0).float().mean() < 0.6 and 0.18 < (states == 0).float().mean() < 0.32
    states.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
