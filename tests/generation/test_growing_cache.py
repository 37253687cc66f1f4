"""A cache with room to grow holds what the plain one holds, whatever is done to it between steps."""

import copy

import pytest
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from hf_variants.modeling import kv_cache
from hf_variants.modeling.kv_cache import GrowingLayer, fit_cache

BETWEEN = {
    "nothing": lambda layer: None,
    "crop": lambda layer: layer.crop(-3),
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([1, 0])),
    "repeat": lambda layer: layer.batch_repeat_interleave(1),
    "select": lambda layer: layer.batch_select_indices(torch.tensor([1, 0])),
    "offload": lambda layer: setattr(layer, "keys", layer.keys.clone()),
}


@pytest.fixture(autouse=True)
def grows_from_the_start(monkeypatch):
    monkeypatch.setattr(kv_cache, "COPIED_BELOW", 1)


@pytest.mark.parametrize("name", BETWEEN)
@torch.no_grad()
def test_holds_what_the_plain_layer_holds(name):
    layers, seen = (GrowingLayer(), DynamicLayer()), []
    torch.manual_seed(0)
    for step, new in enumerate((5, 1, 1, 4, 1, 70, 1, 1)):
        keys, values = torch.randn(2, 3, new, 4), torch.randn(2, 3, new, 2)
        held = [layer.update(keys, values) for layer in layers]
        assert all(torch.equal(*pair) for pair in zip(*held, strict=True))
        seen.append((held[0][0], held[1][0]))
        if step in (2, 4, 6):
            for layer in layers:
                BETWEEN[name](layer)
    # what was handed out before is not written over
    assert all(torch.equal(*pair) for pair in seen)


@torch.no_grad()
def test_copies_go_their_own_way():
    layer = GrowingLayer()
    layer.update(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1))
    layer.update(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
    for twin in (copy.copy(layer), copy.deepcopy(layer)):
        ours = layer.update(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1))[0]
        theirs = twin.update(torch.full((1, 1, 1, 1), 2.0), torch.zeros(1, 1, 1, 1))[0]
        assert ours[0, 0, -1] == 1 and theirs[0, 0, -1] == 2


@torch.no_grad()
def test_a_step_writes_its_own_tokens_only():
    layer = GrowingLayer()
    layer.update(torch.zeros(1, 1, 8, 1), torch.zeros(1, 1, 8, 1))
    places = {layer.update(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))[0].data_ptr() for _ in range(20)}
    assert len(places) == 1


@pytest.mark.parametrize("trained", [0, 1])
def test_gradients_flow_through_a_cache_that_is_trained_with(trained):
    layer, states = GrowingLayer(), [torch.randn(1, 1, 2, 3), torch.randn(1, 1, 2, 3)]
    states[trained].requires_grad_()
    for _ in range(2):
        held = layer.update(*states)
    held[trained].sum().backward()
    assert states[trained].grad.sum() == 12


def test_only_plain_growing_layers_are_replaced():
    cache = fit_cache(DynamicCache())
    assert cache.layer_class_to_replicate is GrowingLayer
    used = DynamicCache()
    used.update(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), 0)
    assert type(fit_cache(used).layers[0]) is DynamicLayer
    assert fit_cache(DynamicCache(offloading=True)).layer_class_to_replicate is not GrowingLayer
