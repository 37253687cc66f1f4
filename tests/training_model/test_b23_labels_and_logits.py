"""B23 and what surrounds the loss: labels meet positions once, and logits are there for whoever reads them."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_variants import VariantsForMaskedLM
from hf_variants.modeling import logit_chunks, losses
from hf_variants.modeling.head_model import warn_of_kept_labels
from hf_variants.modeling.modeling_variants_seq2seq import shift_right
from tests.towers import pixels
from tests.training_model.support import batch_of, sparse_model, trainer_of, uneven_rows
from tests.variants import build, tiny, tiny_pair
from tests.vision import GATED, IMAGE, IMAGE_ID, row, vlm


def by_hand(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@pytest.mark.parametrize("name", ["gqa", "final_softcap", "tied", "logits_scaling", "lm_head_bias", "moe"])
@pytest.mark.parametrize("training", [True, False])
def test_b23_labels_are_shifted_once(name, training):
    model, batch = build(tiny(name)).train(training), batch_of(uneven_rows(4))
    out = model(**batch)
    expected = by_hand(model.eval()(batch["input_ids"]).logits[:, :-1], batch["labels"][:, 1:])
    assert out.loss.item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_b23_shift_labels_take_the_place_of_labels(training):
    model, batch = sparse_model().train(training), batch_of(uneven_rows(4))
    shifted = nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    expected = model(**batch).loss
    labels = batch.pop("labels")
    assert torch.equal(model(**batch, shift_labels=shifted).loss, expected)
    assert torch.equal(model(**batch, labels=labels.roll(3), shift_labels=shifted).loss, expected)


def test_b23_masked_language_model_does_not_shift():
    model = sparse_model(VariantsForMaskedLM, is_causal=False).train()
    batch = batch_of(uneven_rows(4))
    out = model(**batch)
    expected = by_hand(model.eval()(batch["input_ids"]).logits, batch["labels"])
    assert out.loss.item() == pytest.approx(expected.item(), abs=1e-5)


def test_trainer_finds_one_set_of_labels(tmp_path):
    trainer = trainer_of(sparse_model(), uneven_rows(), tmp_path)
    assert trainer.label_names == ["labels"]
    assert trainer.model_accepts_loss_kwargs
    assert "eval_loss" in trainer.evaluate()


def test_trainer_predicts_logits(tmp_path):
    model, rows = sparse_model(output_router_logits=True), uneven_rows()
    prediction = trainer_of(model, rows, tmp_path).predict(rows)
    assert prediction.predictions.shape == (8, 12, 61)
    with torch.no_grad():
        expected = model.eval()(batch_of(rows)["input_ids"]).logits
    assert torch.allclose(torch.tensor(prediction.predictions), expected, atol=1e-5)


def image_rows(model):
    """Rows of one image each, before or within a text of which all is a target."""
    spelled = (row(model, IMAGE, 5, 6, 7, 8), row(model, 9, 10, IMAGE, 11, 12))
    rows = [{"input_ids": torch.tensor(ids), "pixel_values": pixels(1) + index} for index, ids in enumerate(spelled)]
    return [{**one, "labels": one["input_ids"].masked_fill(one["input_ids"] == IMAGE_ID, -100)} for one in rows]


# -> (model, rows), and by how much labels are shifted; some first tokens are labelled
TRAINED = {
    "causal": (lambda: (sparse_model(), uneven_rows()), 1),
    "images": (lambda: (lambda model: (model, image_rows(model)))(vlm()), 1),
    "images across": (lambda: (lambda model: (model, image_rows(model)))(vlm(**GATED)), 1),
    "masked": (lambda: (build(tiny("gqa", is_causal=False), VariantsForMaskedLM), uneven_rows()), 0),
    "encoder-decoder": (lambda: (build(tiny_pair(pad_token_id=0)), uneven_rows()), 0),
}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", TRAINED)
def test_the_trainers_loss_is_the_mean_over_what_is_predicted(name, smoothing, tmp_path):
    made, shift = TRAINED[name]
    model, rows = made()
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        rows = [{**one, "decoder_input_ids": shift_right(one["labels"][None], model.config)[0]} for one in rows]
    batch = batch_of(rows)
    with torch.no_grad():
        logits = model.eval()(**{key: value for key, value in batch.items() if key != "labels"}).logits
    flat, targets = logits[:, : logits.shape[1] - shift].flatten(0, 1), batch["labels"][:, shift:].flatten()
    expected = nn.functional.cross_entropy(flat, targets, label_smoothing=smoothing).item()
    keys = {"learning_rate": 0.0, "label_smoothing_factor": smoothing, "remove_unused_columns": False}
    trainer = trainer_of(model, rows, tmp_path, **keys)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-5)
    trainer.train()
    assert trainer.state.log_history[-2]["loss"] == pytest.approx(expected, abs=1e-4)


BALANCED = {"router_balance": "aux_loss", "router_aux_loss_coef": 1.0}


@pytest.mark.parametrize(
    ("made", "terms"),
    [
        (lambda: sparse_model(**BALANCED), "['aux_loss']"),
        (
            lambda: build(tiny_pair("moe_aux_loss", "moe_aux_loss", pad_token_id=0)),
            "['encoder_aux_loss', 'encoder_z_loss', 'decoder_aux_loss', 'decoder_z_loss']",
        ),
    ],
    ids=["one stack", "two stacks"],
)
def test_label_smoothing_says_that_the_router_losses_are_left_out(made, terms, tmp_path, caplog):
    from transformers.utils import logging

    logging.get_logger("transformers").propagate = True
    model, rows = made(), uneven_rows()
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        rows = [{**one, "decoder_input_ids": one["input_ids"]} for one in rows]
    with caplog.at_level("WARNING"):
        warn_of_kept_labels.__globals__["logger"].warning_once.cache_clear()
        trainer_of(model, rows, tmp_path, label_smoothing_factor=0.1).train()
    assert f"the loss lacks {terms}" in caplog.text


def test_deferred_logits_equal_those_of_evaluation():
    model, batch = sparse_model(), batch_of(uneven_rows(4))
    expected = model.eval()(**batch).logits
    out = model.train()(**batch)
    assert isinstance(object.__getattribute__(out, "logits"), losses.DeferredLogits)
    assert torch.equal(out["logits"], expected)
    assert torch.equal(out.logits, expected)
    assert out.logits is out.logits
    loss, logits = model(**batch, return_dict=False)[:2]
    assert loss.dim() == 0
    assert torch.equal(logits, expected)
    assert torch.equal(model(**batch)[1], expected)


def test_deferred_logits_carry_gradients():
    model, batch = sparse_model().train(), batch_of(uneven_rows(4))
    model(**batch).logits.sum().backward()
    assert model.model.embed_tokens.weight.grad.abs().sum() > 0
    assert model.lm_head.weight.grad.abs().sum() > 0


def test_token_accuracy_as_trl_reads_it():
    """TRL's SFTTrainer asks the output of a training step for the entropy and accuracy of its logits."""
    model, batch = sparse_model().train(), batch_of(uneven_rows(4))
    outputs = model(**batch)
    with torch.no_grad():
        shift_logits = outputs.logits[..., :-1, :].contiguous()
        accuracy = (shift_logits.argmax(-1) == batch["labels"][..., 1:]).float().mean()
    assert 0 <= accuracy <= 1
    outputs.loss.backward()


def test_logits_to_keep_with_labels():
    model, batch = sparse_model().train(), batch_of(uneven_rows(4))
    whole = model(**batch)
    kept = model(**batch, logits_to_keep=3)
    assert torch.equal(kept.loss, whole.loss)
    assert torch.equal(kept.logits, whole.logits[:, -3:])
    assert torch.allclose(model.eval()(**batch, logits_to_keep=3).loss, whole.loss, atol=1e-6)


@pytest.fixture
def fresh_accelerator():
    """accelerate keeps the precision of a process in one place."""
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


@pytest.mark.usefixtures("fresh_accelerator")
@pytest.mark.parametrize("name", ["gqa", "moe_bias_balance", "mla_softcap", "post_ln", "final_softcap"])
def test_bf16_autocast_through_accelerate(name):
    model, batch = build(tiny(name)), batch_of(uneven_rows(4))
    prepared = Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
    out = prepared.train()(**batch)
    assert out.loss.dtype == torch.float32
    assert torch.isfinite(out.logits).all()
    expected = prepared.eval()(**batch).logits
    assert (out.logits - expected).abs().max() < 0.05 * expected.abs().max()
    out.loss.backward()


class LargestFloat(TorchDispatchMode):
    """Size of the largest fp32 tensor that any operation puts out."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32:
                self.elements = max(self.elements, tensor.numel())
        return out


def with_lora(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head", "q_proj"]))


LARGE_HEADS = {
    "plain": ({}, False),
    "soft-cap": ({"final_logit_softcapping": 3.0}, False),
    "tied": ({"tie_word_embeddings": True}, False),
    "scaled": ({"logits_scaling": 2.0}, False),
    "lora": ({}, True),
    "lora, soft-cap": ({"final_logit_softcapping": 3.0}, True),
}


@pytest.mark.parametrize("name", LARGE_HEADS)
def test_cross_entropy_never_holds_the_full_logits(monkeypatch, name):
    options, adapt = LARGE_HEADS[name]
    model = sparse_model(vocab_size=1000, num_experts=0, num_experts_per_tok=None, moe_intermediate_size=None, **options)
    model = with_lora(model) if adapt else model
    ids = torch.randint(1, 1000, (4, 64))
    expected = model.eval()(ids, labels=ids)
    expected.loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", 16 * 1000)
    monkeypatch.setattr(logit_chunks, "CHUNK_BYTES", {"cpu": 4 * 16 * 1000})
    kept = []
    with (
        LargestFloat() as largest,
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t),
    ):
        out = model.train()(input_ids=ids, labels=ids)
        out.loss.backward()
    assert torch.allclose(out.loss, expected.loss, atol=1e-6)
    assert largest.elements <= 1000 * 32, "the weight of the head is the largest tensor"
    assert max(kept) <= 1000 * 32
    for name, parameter in model.named_parameters():
        if name in gradients:
            assert torch.allclose(parameter.grad, gradients[name], atol=1e-6), name


def test_no_labelled_token_gives_a_zero_loss_with_gradients():
    model, batch = sparse_model().train(), batch_of(uneven_rows(4))
    batch["labels"] = torch.full_like(batch["labels"], -100)
    out = model(**batch)
    assert out.loss.item() == 0
    out.loss.backward()
