"""B05, B06, B22: loss, gradients, logged numbers and the weight of the router losses do not depend on how a batch is cut."""

import pytest
import torch

from hf_variants import VariantsForMaskedLM
from tests.training_model.launch import launch
from tests.training_model.support import batch_of, difference, distance, identical_rows, sparse_model, step_of, uneven_rows

BIAS = {"router_balance": "bias", "router_bias_update_rate": 0.01}
CUTS = [(8, 1), (4, 2), (2, 4), (1, 8)]
AUX = {"router_balance": "aux_loss", "router_aux_loss_coef": 1.0, "router_z_loss_coef": 0.5}


@pytest.mark.parametrize(("size", "accumulate"), CUTS[1:])
def test_b22_gradients_and_logged_loss_do_not_depend_on_the_cut(tmp_path, size, accumulate):
    model, rows = sparse_model(), uneven_rows()
    whole, line = step_of(model, rows, tmp_path)
    cut, cut_line = step_of(model, rows, tmp_path, size, accumulate)
    assert distance(whole, cut) < 1e-5
    assert abs(line["loss"] - cut_line["loss"]) < 1e-4
    assert abs(line["grad_norm"] - cut_line["grad_norm"]) < 1e-4


def test_b22_masked_language_model(tmp_path):
    model = sparse_model(VariantsForMaskedLM, is_causal=False)
    rows = uneven_rows()
    assert distance(step_of(model, rows, tmp_path)[0], step_of(model, rows, tmp_path, 1, 8)[0]) < 1e-5


@pytest.mark.parametrize(("size", "accumulate"), [CUTS[1], *(pytest.param(*cut, marks=pytest.mark.slow) for cut in CUTS[2:])])
def test_b05_router_losses_weigh_the_same_under_gradient_accumulation(tmp_path, size, accumulate):
    model, rows = sparse_model(**AUX), identical_rows()
    whole, line = step_of(model, rows, tmp_path)
    cut, cut_line = step_of(model, rows, tmp_path, size, accumulate)
    assert distance(whole, cut) < 1e-5
    for name in ("loss", "aux_loss", "z_loss"):
        assert abs(line[name] - cut_line[name]) < 1e-4, name
    plain = step_of(sparse_model(), rows, tmp_path)[0]
    router = "model.layers.1.mlp.gate.weight"
    aux = [difference(gradients, plain)[router] for gradients in (whole, cut)]
    assert aux[0].norm() > 0.01
    assert (aux[1].norm() / aux[0].norm()).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.slow
def test_b06_two_processes_equal_one(tmp_path):
    two = launch(tmp_path, "batch_cut")
    for name, rows, options in (
        ("uneven", uneven_rows(), {}),
        ("plain", identical_rows(), {}),
        ("aux", identical_rows(), AUX),
    ):
        one, line = step_of(sparse_model(**options), rows, tmp_path)
        assert distance(one, two[name]) < 1e-5, name
        assert abs(line["loss"] - two["lines"][name]["loss"]) < 1e-4, name
    assert abs(line["aux_loss"] - two["lines"]["aux"]["aux_loss"]) < 1e-5
    assert line["expert_load_layer_1_max"] == two["lines"]["aux"]["expert_load_layer_1_max"]
    router = "model.layers.1.mlp.gate.weight"
    one_plain = step_of(sparse_model(), identical_rows(), tmp_path)[0]
    ratio = (two["aux"][router] - two["plain"][router]).norm() / (one[router] - one_plain[router]).norm()
    assert ratio.item() == pytest.approx(1.0, abs=1e-4)
    assert torch.equal(two["bias"], two["bias_of_other_rank"])


@pytest.mark.slow
def test_b06_b11_sharded_weights_equal_one_process(tmp_path):
    two = launch(tmp_path, "sharded")
    for name, options in (("bias", BIAS), ("aux", {**AUX, "tie_word_embeddings": True})):
        rows = identical_rows() if name == "aux" else uneven_rows()
        model = sparse_model(**options)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model.train()(**batch_of(rows)).loss.backward()
        optimizer.step()
        for key, weight in model.named_parameters():
            assert (two[name][key] - weight).abs().max() < 1e-5, (name, key)
        if name == "bias":
            balance = torch.stack([layer.mlp.gate.e_score_correction_bias for layer in model.model.layers])
            assert torch.equal(two["balance"], balance)
