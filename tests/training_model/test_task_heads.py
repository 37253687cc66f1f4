"""The task heads under Trainer: their losses equal hand-written ones and do not depend on how a batch is cut."""

import copy

import pytest
import torch
from torch import nn

from hf_variants import (
    VariantsForMaskedLM,
    VariantsForQuestionAnswering,
    VariantsForSequenceClassification,
    VariantsForTokenClassification,
)
from tests.training_model.support import batch_of, distance, sparse_model, step_of, trainer_of, uneven_rows

AUX = {"router_balance": "aux_loss", "router_aux_loss_coef": 0.1}


def rows_with(labels):
    return [
        {"input_ids": row["input_ids"], "attention_mask": row["attention_mask"], "labels": label}
        for row, label in zip(uneven_rows(), labels, strict=True)
    ]


def classes():
    return rows_with(torch.arange(8) % 3)


def several():
    return rows_with((torch.arange(24).view(8, 3) % 2).float())


def targets():
    return rows_with(torch.linspace(-1, 1, 8))


def target_vectors():
    return rows_with(torch.linspace(-1, 1, 24).view(8, 3))


def tags():
    return rows_with(torch.stack([torch.where(row["labels"] < 0, -100, row["labels"] % 3) for row in uneven_rows()]))


def spans():
    rows = uneven_rows()
    for index, row in enumerate(rows):
        del row["labels"]
        row |= {"start_positions": torch.tensor(index % 5), "end_positions": torch.tensor(6 + index % 5)}
    return rows


def cross_entropy(out, batch):
    return nn.functional.cross_entropy(out.logits.flatten(0, -2), batch["labels"].flatten())


def binary_cross_entropy(out, batch):
    return nn.functional.binary_cross_entropy_with_logits(out.logits, batch["labels"])


def squared_error(out, batch):
    return nn.functional.mse_loss(out.logits.squeeze(-1), batch["labels"])


def span_cross_entropy(out, batch):
    sides = ((out.start_logits, batch["start_positions"]), (out.end_logits, batch["end_positions"]))
    return sum(nn.functional.cross_entropy(*side) for side in sides) / 2


CASES = {
    "classes": (VariantsForSequenceClassification, classes, cross_entropy, {}),
    "several labels": (VariantsForSequenceClassification, several, binary_cross_entropy, {}),
    "target": (VariantsForSequenceClassification, targets, squared_error, {"num_labels": 1}),
    "targets": (VariantsForSequenceClassification, target_vectors, squared_error, {"problem_type": "regression"}),
    "tags": (VariantsForTokenClassification, tags, cross_entropy, {}),
    "spans": (VariantsForQuestionAnswering, spans, span_cross_entropy, {}),
    "masked": (VariantsForMaskedLM, uneven_rows, cross_entropy, {"is_causal": False}),
    "encoder classes": (VariantsForSequenceClassification, classes, cross_entropy, {"is_causal": False}),
}


def case(name, **options):
    cls, rows, loss, overrides = CASES[name]
    return sparse_model(cls, **{"num_labels": 3, **overrides, **options}), rows(), loss


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("training", [True, False])
def test_loss_equals_the_written_one(name, training):
    model, rows, loss = case(name)
    batch = batch_of(rows)
    out = model.train(training)(**batch)
    assert out.loss.item() == pytest.approx(loss(out, batch).item(), abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_gradients_do_not_depend_on_the_cut(name, tmp_path):
    model, rows, _ = case(name)
    whole, line = step_of(model, rows, tmp_path)
    cut, cut_line = step_of(model, rows, tmp_path, 2, 4)
    assert distance(whole, cut) < 1e-5
    assert abs(line["loss"] - cut_line["loss"]) < 1e-4


@pytest.mark.parametrize("name", CASES)
def test_router_losses_weigh_the_same_on_identical_rows(name, tmp_path):
    model, rows, _ = case(name, **AUX)
    rows = rows[:1] * 8
    whole, line = step_of(model, rows, tmp_path)
    cut, cut_line = step_of(model, rows, tmp_path, 1, 8)
    assert distance(whole, cut) < 1e-5
    assert abs(line["loss"] - cut_line["loss"]) < 1e-4
    assert line["aux_loss"] == pytest.approx(cut_line["aux_loss"], abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_trainer_learns_evaluates_and_predicts(name, tmp_path):
    model, rows, loss = case(name, **AUX)
    trainer = trainer_of(copy.deepcopy(model), rows, tmp_path, max_steps=12, optim="adamw_torch", learning_rate=3e-3)
    with torch.no_grad():
        expected = loss(model.eval()(**batch_of(rows)), batch_of(rows)).item()
    before = trainer.evaluate()["eval_loss"]
    assert before == pytest.approx(expected, abs=1e-5)
    trainer.train()
    prediction = trainer.predict(rows)
    assert prediction.metrics["test_loss"] < before
    first = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
    assert len(first) == 8
