"""B11: auxiliary-loss-free balancing moves the bias by exactly one signed step per optimizer step, whoever runs the loop."""

import copy
import pickle

import pytest
import torch

from hf_variants import VariantsForCausalLM
from tests.training_model.launch import launch
from tests.training_model.support import batch_of, biases, sparse_model, trainer_of, uneven_rows

RATE = 0.01
BIAS = {"router_balance": "bias", "router_bias_update_rate": RATE}


def skewed(**overrides):
    """A model that sends every token to experts 0 and 1, whatever a small bias says; its weights stay as they are."""
    model = sparse_model(**BIAS, router_bias=True, **overrides)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.mul_(0.01)
            layer.mlp.gate.bias.copy_(torch.tensor([9.0, 8.0, -8.0, -9.0]))
    return model


def trained(model, directory, size=8, accumulate=1, steps=3, rate=0.0, rows=None, **overrides):
    rows = uneven_rows(24) if rows is None else rows
    trainer = trainer_of(model, rows, directory, size, accumulate, max_steps=steps, learning_rate=rate, **overrides)
    trainer.train()
    return trainer


@pytest.mark.parametrize(("size", "accumulate"), [(8, 1), (2, 4)])
def test_b11_moves_by_steps_times_rate(tmp_path, size, accumulate):
    model = skewed()
    trainer = trained(model, tmp_path, size, accumulate)
    expected = torch.tensor([-3 * RATE, -3 * RATE, 3 * RATE, 3 * RATE]).expand(2, 4)
    assert torch.allclose(biases(model), expected, atol=1e-7)
    before = biases(model).clone()
    trainer.evaluate()
    assert torch.equal(biases(model), before)
    assert model.model.layers[0].mlp.gate.load is None


def test_b11_does_not_depend_on_gradient_accumulation(tmp_path):
    models = [sparse_model(**BIAS) for _ in range(2)]
    trained(models[0], tmp_path, 8, 1, rate=0.1)
    trained(models[1], tmp_path, 2, 4, rate=0.1)
    assert biases(models[0]).abs().max() > 0
    assert torch.equal(biases(models[0]), biases(models[1]))


@pytest.mark.parametrize("reentrant", [True, False])
def test_b11_counts_once_under_activation_checkpointing(tmp_path, reentrant):
    plain, checkpointed = sparse_model(**BIAS), sparse_model(**BIAS)
    trained(plain, tmp_path, steps=1)
    options = {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": reentrant}}
    trained(checkpointed, tmp_path, steps=1, **options)
    for one, other in zip(plain.model.layers, checkpointed.model.layers, strict=True):
        assert torch.equal(one.mlp.gate.last_load, other.mlp.gate.last_load)
        assert one.mlp.gate.last_load.sum() == 8 * 12 * 2
    assert torch.equal(biases(plain), biases(checkpointed))


def test_b11_pads_do_not_count(tmp_path):
    rows = uneven_rows(8)
    for row in rows:
        row["attention_mask"][9:] = 0
        row["labels"][9:] = -100
    model = sparse_model(**BIAS)
    trained(model, tmp_path, steps=1, rows=rows)
    assert model.model.layers[1].mlp.gate.last_load.sum() == 8 * 9 * 2


def test_b11_weights_do_not_see_a_constant_and_choice_does_not_change():
    gate = sparse_model(**BIAS).eval().model.layers[0].mlp.gate
    states = torch.randn(20, 32)
    _, weights, indices = gate(states)
    gate.e_score_correction_bias.add_(3.0)
    _, shifted_weights, shifted_indices = gate(states)
    assert torch.equal(indices, shifted_indices)
    assert torch.equal(weights, shifted_weights)


@pytest.mark.parametrize("cast", [lambda m: m.to(torch.bfloat16), lambda m: m.bfloat16(), lambda m: m.half()])
def test_b11_stays_fp32_through_casts(cast):
    model = skewed()
    with torch.no_grad():
        biases_before = [layer.mlp.gate.e_score_correction_bias.fill_(1.001) for layer in model.model.layers]
    assert len(biases_before) == 2
    cast(model)
    assert biases(model).dtype == torch.float32
    assert torch.equal(biases(model), torch.full((2, 4), 1.001))
    assert model.lm_head.weight.dtype != torch.float32


def test_b11_stays_fp32_through_from_pretrained(tmp_path):
    model = skewed()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.e_score_correction_bias.fill_(1.001)
    model.save_pretrained(tmp_path)
    loaded = VariantsForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(biases(loaded), torch.full((2, 4), 1.001))
    assert loaded.lm_head.weight.dtype == torch.bfloat16


def test_b11_resumed_run_equals_uninterrupted(tmp_path):
    options = {"rate": 0.05, "save_strategy": "steps", "save_steps": 2, "optim": "adamw_torch"}
    whole = sparse_model(**BIAS, spread=1.0)
    trained(whole, tmp_path / "run", steps=4, rows=uneven_rows(32), **options)
    resumed = sparse_model(**BIAS, seed=7)
    trainer = trainer_of(
        resumed,
        uneven_rows(32),
        tmp_path / "run",
        max_steps=4,
        learning_rate=0.05,
        optim="adamw_torch",
    )
    trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert biases(whole).abs().max() > 0
    for (name, one), (_, other) in zip(whole.state_dict().items(), resumed.state_dict().items(), strict=True):
        assert torch.equal(one, other), name


def step_by_hand(model, parameters=None):
    optimizer = torch.optim.SGD(list(model.parameters()) if parameters is None else parameters, lr=0.0)
    model.train()(**batch_of(uneven_rows())).loss.backward()
    optimizer.step()


def test_b11_a_deep_copy_is_balanced_and_its_original_is_not():
    model = skewed()
    twin = copy.deepcopy(model)
    step_by_hand(twin)
    assert torch.equal(biases(model), torch.zeros(2, 4))
    assert torch.allclose(biases(twin)[0], torch.tensor([-RATE, -RATE, RATE, RATE]))
    step_by_hand(model)
    assert torch.allclose(biases(model)[0], torch.tensor([-RATE, -RATE, RATE, RATE]))
    assert torch.allclose(biases(twin)[0], torch.tensor([-RATE, -RATE, RATE, RATE]))


def test_b11_a_pickled_model_is_balanced():
    model = pickle.loads(pickle.dumps(skewed()))
    step_by_hand(model)
    assert torch.allclose(biases(model)[0], torch.tensor([-RATE, -RATE, RATE, RATE]))


def test_b11_an_optimizer_that_does_not_own_the_router_leaves_it():
    model = skewed()
    step_by_hand(model, [model.lm_head.weight])
    assert torch.equal(biases(model), torch.zeros(2, 4))


def test_b11_not_a_parameter_and_without_gradient():
    model = skewed()
    assert not [name for name, _ in model.named_parameters() if "e_score" in name]
    assert not biases(model).requires_grad
    assert "model.layers.0.mlp.gate.e_score_correction_bias" in model.state_dict()


@pytest.mark.slow
def test_b11_two_processes_equal_one(tmp_path):
    two = launch(tmp_path, "batch_cut")
    model = sparse_model(**BIAS)
    trained(model, tmp_path, 8, 1, steps=3, rate=1.0)
    assert torch.equal(two["bias"], two["bias_of_other_rank"])
    assert torch.equal(two["bias"], biases(model))
