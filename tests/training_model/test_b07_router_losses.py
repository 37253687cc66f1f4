"""B07 to B10: what the router losses are, when they are added, and what they leave out."""

import pytest
import torch
from torch import nn
from transformers.utils import logging as library

from hf_variants import (
    VariantsForCausalLM,
    VariantsForMaskedLM,
    VariantsForQuestionAnswering,
    VariantsForSequenceClassification,
    VariantsForTokenClassification,
)
from hf_variants.modeling import router_balance
from hf_variants.modeling.losses import load_balancing_loss, router_z_loss
from tests.training_model.support import batch_of, sparse_model, trainer_of, uneven_rows

AUX = {"router_balance": "aux_loss", "router_aux_loss_coef": 1.0}
HEADS = {
    VariantsForCausalLM: {},
    VariantsForMaskedLM: {"is_causal": False},
    VariantsForSequenceClassification: {},
    VariantsForTokenClassification: {},
    VariantsForQuestionAnswering: {},
}


def labelled(cls):
    batch = batch_of(uneven_rows(4))
    if cls is VariantsForSequenceClassification:
        batch["labels"] = torch.tensor([0, 1, 1, 0])
    elif cls is VariantsForTokenClassification:
        batch["labels"] = batch["labels"] % 2 * (batch["labels"] >= 0) - 100 * (batch["labels"] < 0)
    elif cls is VariantsForQuestionAnswering:
        del batch["labels"]
        batch |= {"start_positions": torch.tensor([1, 2, 3, 4]), "end_positions": torch.tensor([5, 6, 7, 8])}
    return batch


def collapsed(experts):
    """Logits of five tokens that all choose the same two of four experts."""
    logits = torch.full((5, 4), -50.0)
    logits[:, experts] = 50.0
    return logits


def test_b07_imbalance_is_taken_per_layer():
    layers = (collapsed([0, 1]), collapsed([2, 3]))
    assert load_balancing_loss(layers, top_k=2).item() == pytest.approx(4.0, abs=1e-5)
    even = (torch.eye(4).mul(9) + torch.eye(4).roll(1, 0).mul(8)).repeat(3, 1)
    assert load_balancing_loss((even, even), top_k=2).item() == pytest.approx(2.0, abs=1e-5)


def test_b07_mean_over_layers():
    torch.manual_seed(0)
    layers = [torch.randn(7, 4), torch.randn(7, 4)]
    for loss in (lambda layers: load_balancing_loss(layers, 2), router_z_loss):
        assert torch.allclose(loss(layers), (loss(layers[:1]) + loss(layers[1:])) / 2)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_b07_equals_the_written_formula(scoring):
    torch.manual_seed(0)
    logits = torch.randn(9, 4)
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    counts = torch.zeros(4)
    for row in scores.topk(2).indices:
        counts[row] += 1 / 9
    share = (scores / scores.sum(-1, keepdim=True)).mean(0)
    assert load_balancing_loss([logits], 2, scoring).item() == pytest.approx(4 * (counts * share).sum().item(), abs=1e-6)
    z = (logits.exp().sum(-1).log() ** 2).mean()
    assert router_z_loss([logits]).item() == pytest.approx(z.item(), abs=1e-6)


@pytest.mark.parametrize("cls", HEADS)
def test_b08_added_in_training_without_a_flag(cls):
    model = sparse_model(cls, **HEADS[cls], **AUX, router_z_loss_coef=0.25).train()
    batch = labelled(cls)
    out = model(**batch)
    terms = {name: total for name, (total, _) in model.router_sums.items()}
    pure = model.eval()(**batch).loss
    added = terms["aux_loss"] + 0.25 * terms["z_loss"]
    assert added > 1.0
    assert torch.allclose(out.loss, pure + added, atol=1e-5)
    assert "router_logits" not in out


def test_b08_the_field_is_set_and_logits_only_when_asked():
    model, batch = sparse_model(**AUX).train(), batch_of(uneven_rows(4))
    out = model(**batch)
    assert out.aux_loss > 1.0
    assert out.router_logits is None
    shown = model(**batch, output_router_logits=True).router_logits
    assert [tuple(logits.shape) for logits in shown] == [(48, 4), (48, 4)]
    model.config.output_router_logits = True
    assert len(model.eval()(**batch).router_logits) == 2


def test_b08_reported_without_labels_when_router_logits_are_asked():
    model, batch = sparse_model(**AUX).train(), batch_of(uneven_rows(4))
    expected = model(**batch).aux_loss
    del batch["labels"]
    assert torch.equal(model(**batch, output_router_logits=True).aux_loss, expected)
    assert model(**batch).aux_loss is None


def test_b08_not_doubled_under_activation_checkpointing():
    model, batch = sparse_model(**AUX).train(), batch_of(uneven_rows(4))
    model(**batch).loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.activation_checkpointing_enable({"use_reentrant": False})
    model(**batch, use_cache=False).loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], atol=1e-6), name


def test_b08_not_lost_silently_under_reentrant_checkpointing():
    model, batch = sparse_model(**AUX).train(), batch_of(uneven_rows(4))
    model.activation_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="use_reentrant=True.*aux_loss.*set use_reentrant=False"):
        model(**batch, use_cache=False)


def test_b09_evaluation_loss_is_pure_cross_entropy(tmp_path):
    rows = uneven_rows()
    with_aux, without = sparse_model(**AUX, router_z_loss_coef=0.5), sparse_model()
    losses = [trainer_of(model, rows, tmp_path).evaluate()["eval_loss"] for model in (with_aux, without)]
    assert losses[0] == losses[1]
    batch = batch_of(rows)
    logits = without.eval()(batch["input_ids"]).logits
    by_hand = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    assert losses[0] == pytest.approx(by_hand.item(), abs=1e-5)
    # asked for router logits, it returns them and adds nothing
    shown = with_aux.eval()(**batch, output_router_logits=True)
    assert len(shown.router_logits) == 2 and shown.loss.item() == pytest.approx(by_hand.item(), abs=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_b10_pads_count_for_nothing(side):
    rows = batch_of(uneven_rows(3))
    model = sparse_model(**AUX, router_z_loss_coef=0.5).train()
    alone = model(**rows)
    loads = [layer.mlp.gate.load for layer in model.model.layers]
    for layer in model.model.layers:
        layer.mlp.gate.load = None
    pad = (5, 0) if side == "left" else (0, 5)
    padded = {
        "input_ids": nn.functional.pad(rows["input_ids"], pad),
        "labels": nn.functional.pad(rows["labels"], pad, value=-100),
        "attention_mask": nn.functional.pad(rows["attention_mask"], pad),
    }
    out = model(**padded)
    assert torch.allclose(out.aux_loss, alone.aux_loss, atol=1e-5)
    assert torch.allclose(out.z_loss, alone.z_loss, atol=1e-4)
    for layer, load in zip(model.model.layers, loads, strict=True):
        assert torch.equal(layer.mlp.gate.load, load)
        assert load.sum() == 3 * 12 * 2


@pytest.mark.parametrize(("scoring", "selection"), [("softmax", "scores"), ("sigmoid", "scores"), ("sigmoid", "logits")])
def test_the_balance_loss_counts_the_experts_that_were_chosen_within_groups(scoring, selection):
    """In training: each layer's f is the load that its router recorded, though experts of other groups have higher scores."""
    groups = {"n_group": 2, "topk_group": 1}
    keys = {**AUX, **groups, "router_scoring": scoring, "router_selection": selection}
    model = sparse_model(VariantsForCausalLM, spread=20.0, **keys).train()
    batch = batch_of(uneven_rows(4))
    out = model(**batch, output_router_logits=True)
    mask = batch["attention_mask"].flatten().bool()
    terms = []
    for layer, logits in zip(model.model.layers, out.router_logits, strict=True):
        scores = (logits.softmax(-1) if scoring == "softmax" else logits.sigmoid())[mask]
        fraction = layer.mlp.gate.load / mask.sum()
        share = (scores / scores.sum(-1, keepdim=True)).mean(0)
        terms.append(scores.shape[1] * (fraction * share).sum())
    found = model.router_sums["aux_loss"][0].item()
    assert found == pytest.approx(torch.stack(terms).mean().item(), abs=1e-6)
    others = [{}] if selection == "scores" else [{}, groups]
    for other in others:
        assert abs(load_balancing_loss(out.router_logits, 2, scoring, mask, **other).item() - found) > 1e-4


# ---- one expert per token ----
def told(caplog):
    return [record for record in caplog.records if "norm_topk_prob=True divides" in record.getMessage()]


@pytest.fixture
def heard(caplog):
    """Records of transformers' log, in which nothing has been said yet."""
    library.enable_propagation()
    router_balance.logger.warning_once.cache_clear()
    yield caplog
    library.disable_propagation()


ONE = {"num_experts_per_tok": 1}


def test_weights_of_one_expert_that_are_always_one_are_told_once_in_training(heard):
    model = sparse_model(VariantsForCausalLM, **ONE)
    batch = batch_of(uneven_rows(4))
    model.eval()(**batch)
    assert not told(heard)
    for _ in range(2):
        model.train()(**batch).loss.backward()
    (record,) = told(heard)
    assert record.levelname == "WARNING" and "num_experts_per_tok=1" in record.getMessage()
    assert all(layer.mlp.gate.weight.grad.abs().max() < 1e-6 for layer in model.model.layers)


@pytest.mark.parametrize("keys", [{"norm_topk_prob": False}, {"num_experts_per_tok": 2}], ids=str)
def test_routers_with_a_gradient_are_not_told(heard, keys):
    model = sparse_model(VariantsForCausalLM, **{**ONE, **keys}).train()
    model(**batch_of(uneven_rows(4))).loss.backward()
    assert not told(heard) and all(layer.mlp.gate.weight.grad.abs().max() > 1e-6 for layer in model.model.layers)


def test_frozen_routers_are_not_told(heard):
    model = sparse_model(VariantsForCausalLM, **ONE).train()
    for layer in model.model.layers:
        layer.mlp.gate.weight.requires_grad_(False)
    model(**batch_of(uneven_rows(4))).loss.backward()
    assert not told(heard)
