"""Every Trainer logs router losses and expert load beside the loss of a model with experts, and nothing for others."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

from hf_variants import callbacks
from hf_variants.callbacks import load_metrics
from tests.training_model.support import arguments, batch_of, sparse_model, trainer_of, uneven_rows

AUX = {"router_balance": "aux_loss", "router_aux_loss_coef": 0.5, "router_z_loss_coef": 0.25}


def test_load_metrics_are_relative_to_even_use():
    loads = {0: torch.tensor([1.0, 1.0, 2.0, 4.0]), 3: torch.tensor([2.0, 2.0, 2.0, 2.0])}
    assert load_metrics(loads) == {
        "expert_load_layer_0_min": 0.5,
        "expert_load_layer_0_max": 2.0,
        "expert_load_layer_3_min": 1.0,
        "expert_load_layer_3_max": 1.0,
        "expert_load_min": 0.5,
        "expert_load_max": 2.0,
    }
    assert load_metrics({}) == {}


def test_logged_terms_are_those_of_the_steps(tmp_path):
    model, rows = sparse_model(**AUX), uneven_rows(16)
    expected = [model.train()(**batch_of(rows[start : start + 8])) for start in (0, 8)]
    means = {name: torch.stack([out[name] for out in expected]).mean().item() for name in ("aux_loss", "z_loss", "loss")}
    trainer = trainer_of(model, rows, tmp_path, max_steps=2, logging_steps=2, learning_rate=0.0)
    trainer.train()
    line = trainer.state.log_history[0]
    for name, mean in means.items():
        assert line[name] == pytest.approx(mean, abs=1e-4), name
    load = sum(router_load(model, rows[start : start + 8]) for start in (0, 8))
    assert line["expert_load_layer_1_max"] == pytest.approx((load / load.sum() * 4).max().item(), abs=1e-4)


def router_load(model, rows):
    gate = model.model.layers[1].mlp.gate
    gate.load = None
    model.train()(**batch_of(rows))
    load, gate.load = gate.load, None
    return load


def test_lines_start_again(tmp_path):
    trainer = trainer_of(sparse_model(**AUX), uneven_rows(16), tmp_path, max_steps=2, learning_rate=0.0)
    trainer.train()
    lines = [line["aux_loss"] for line in trainer.state.log_history if "aux_loss" in line]
    trainer = trainer_of(sparse_model(**AUX), uneven_rows(16), tmp_path, max_steps=2, logging_steps=2, learning_rate=0.0)
    trainer.train()
    assert trainer.state.log_history[0]["aux_loss"] == pytest.approx(sum(lines) / 2, abs=1e-6)


def test_evaluation_adds_nothing(tmp_path):
    trainer = trainer_of(sparse_model(**AUX), uneven_rows(), tmp_path)
    assert not [key for key in trainer.evaluate() if "aux" in key or "expert" in key]


def test_bias_balancing_logs_load_alone(tmp_path):
    trainer = trainer_of(sparse_model(router_balance="bias"), uneven_rows(), tmp_path)
    trainer.train()
    line = trainer.state.log_history[0]
    assert "expert_load_layer_0_min" in line
    assert "aux_loss" not in line


@pytest.mark.parametrize("family", ["dense", "native"])
def test_inert_for_models_without_experts(tmp_path, family):
    if family == "dense":
        model = sparse_model(num_experts=0, num_experts_per_tok=None, moe_intermediate_size=None)
    else:
        shape = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=2))
    trainer = trainer_of(model, uneven_rows(), tmp_path)
    trainer.train()
    assert set(trainer.state.log_history[0]) == {"loss", "grad_norm", "learning_rate", "epoch", "step"}


def test_frozen_routers_log_their_load_and_keep_their_bias(tmp_path):
    model = sparse_model(router_balance="bias")
    for layer in model.model.layers:
        layer.mlp.gate.requires_grad_(False)
    trainer = trainer_of(model, uneven_rows(16), tmp_path, max_steps=2)
    trainer.train()
    assert trainer.state.log_history[1]["expert_load_layer_1_max"] > 1
    for layer in model.model.layers:
        assert layer.mlp.gate.last_load.sum() == 8 * 12 * 2
        assert not layer.mlp.gate.e_score_correction_bias.any()


@pytest.mark.parametrize("hidden", [True, False])
def test_bias_moves_where_the_optimizer_holds_shards(tmp_path, monkeypatch, hidden):
    """As under DeepSpeed, whose optimizer does not list the weights of the model."""
    monkeypatch.setattr(callbacks, "optimizer_hides_weights", lambda: hidden)
    model = sparse_model(router_balance="bias")
    shard = torch.nn.Parameter(torch.zeros(3))
    arguments_ = arguments(tmp_path, per_device_train_batch_size=8, max_steps=2)
    optimizer = torch.optim.SGD([shard], lr=0.1)
    Trainer(model, arguments_, train_dataset=uneven_rows(16), optimizers=(optimizer, None)).train()
    moved = model.model.layers[1].mlp.gate.e_score_correction_bias.abs().max().item()
    assert moved == pytest.approx(0.002 if hidden else 0.0, abs=1e-7)
