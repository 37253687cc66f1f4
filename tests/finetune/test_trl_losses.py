"""Under TRL's trainers the family trains on its own losses: soft-capped, scaled, with its own balance terms."""

import pytest
import torch

from tests.training_model.support import batch_of, sparse_model, uneven_rows

utils = pytest.importorskip("trl.trainer.utils")

CASES = {
    "aux_loss": {"router_balance": "aux_loss", "router_aux_loss_coef": 0.1},
    "sigmoid and z-loss": {
        "router_balance": "aux_loss",
        "router_aux_loss_coef": 0.1,
        "router_scoring": "sigmoid",
        "router_z_loss_coef": 0.01,
    },
    "bias": {"router_balance": "bias"},
    "scaled and capped head": {"final_logit_softcapping": 5.0, "logits_scaling": 2.0, "lm_head_bias": True},
}


def patched(**options):
    model = sparse_model(**options)
    utils.add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    # what SFTTrainer does to the config of every model with experts
    model.config.output_router_logits = model.config.router_aux_loss_coef != 0
    return model


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_the_models_own(name):
    batch, own, model = batch_of(uneven_rows(4)), sparse_model(**CASES[name]).train(), patched(**CASES[name]).train()
    expected, found = own(**batch), model(**batch, fused_lm_head=True)
    assert found.loss.item() == pytest.approx(expected.loss.item(), abs=1e-5)
    expected.loss.backward()
    found.loss.backward()
    for (key, first), second in zip(own.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(second.grad, first.grad, rtol=1e-4, atol=1e-5, msg=key)


def test_trls_own_coefficient_is_the_one_that_counts():
    """TRL writes its argument into the config and multiplies by it; the z-loss keeps the model's own weight."""
    options = CASES["sigmoid and z-loss"]
    model, own = patched(**options).train(), sparse_model(**options).train()
    model.config.router_aux_loss_coef = 0.5
    batch = batch_of(uneven_rows(4))
    terms, found = own(**batch), model(**batch, fused_lm_head=True)
    weighted = 0.5 * terms.aux_loss.item() + 0.01 * terms.z_loss.item()
    assert 0.5 * found.aux_loss.item() == pytest.approx(weighted, abs=1e-5)


def test_evaluation_is_pure_cross_entropy():
    model, batch = patched(**CASES["aux_loss"]).eval(), batch_of(uneven_rows(4))
    with torch.no_grad():
        assert model(**batch, fused_lm_head=True).loss.item() == pytest.approx(model(**batch).loss.item(), abs=1e-5)


def test_a_z_loss_alone_is_refused():
    with pytest.raises(ValueError, match="router_z_loss_coef=0.01 with router_balance='bias'.* would drop it"):
        patched(router_balance="bias", router_z_loss_coef=0.01)


def test_other_models_are_left_alone():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=61, **sizes))
    utils.add_fused_lm_head(model)
    assert model(**batch_of(uneven_rows(2)), fused_lm_head=True).loss > 0
