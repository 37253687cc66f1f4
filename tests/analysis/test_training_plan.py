"""The estimate of training memory against what a model, its gradients and AdamW really hold."""

import pytest
import torch

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.analysis import flops_per_token, training_plan
from hf_variants.analysis.training_plan import fewest_devices
from hf_variants.presets import load_preset

SHAPE = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}


def test_states_are_those_of_adamw():
    config = VariantsConfig(**SHAPE, num_experts=4, moe_intermediate_size=16)
    model = VariantsForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 100, (2, 8))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    held = [*model.parameters(), *(weight.grad for weight in model.parameters())]
    held += [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    assert training_plan(config, 1).states == sum(tensor.numel() * tensor.element_size() for tensor in held)


def test_sharding_time_and_the_fewest_devices():
    config = load_preset("llama-2-7b")
    alone, eight = (training_plan(config, devices, length=4096, tokens=1e9) for devices in (1, 8))
    assert eight.states == alone.states / 8 and eight.activations == alone.activations
    assert alone.gathered == 0 and not alone.fits and eight.fits
    assert alone.seconds == pytest.approx(3 * flops_per_token(config, 4096).total * 1e9 / (9.89e14 * 0.4))
    fewest = fewest_devices(config, length=4096)
    assert fewest.fits and not training_plan(config, fewest.devices // 2, length=4096).fits
    assert fewest_devices(load_preset("deepseek-v3"), limit=8) is None
    with pytest.raises(ValueError, match="mfu=0 must be positive"):
        training_plan(config, 8, mfu=0)
