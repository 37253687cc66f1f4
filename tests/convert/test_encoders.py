"""Encoders: a native model with any of its heads and its conversion are the same function, and come back bitwise.

Covers known failures B15, B23, B39 and B69 for encoders: padding on both sides, labels, tied heads, checkpoints
that do not fit.
"""

import json

import pytest
import torch
from encoder_cases import (
    CASES,
    ENCODERS,
    FIRST,
    HEADED,
    RECOMBINED,
    labels_for,
    marked,
    native_config,
    native_model,
    outputs_of,
    rows,
)
from safetensors.torch import load_file, save_file

from hf_variants.convert import convert_checkpoint, find_family, from_native, to_native, verify_checkpoint
from hf_variants.convert.config_conversion import as_plain_dict
from hf_variants.convert.heads import OURS, auto_class
from hf_variants.convert.skeletons import tied_names
from hf_variants.convert.weight_rules import apply_rules

TOLERANCE = 1e-5
every_head = pytest.mark.parametrize(("family", "name", "head"), [marked(*case) for case in HEADED])


def far(found, expected, mask=None):
    """Largest difference of outputs; of tokens only where `mask` shows them."""
    assert found.keys() == expected.keys()
    worst = 0.0
    for name, tensor in expected.items():
        difference = (found[name] - tensor).abs()
        per_token = mask is not None and tensor.shape[:2] == mask.shape
        worst = max(worst, (difference[mask.bool()] if per_token else difference).max().item())
    return worst


def test_every_encoder_has_cases():
    assert ENCODERS == sorted({family for family, _ in CASES})
    assert set("bert roberta distilbert electra modernbert nomic_bert eurobert".split()) <= set(ENCODERS)


@every_head
@torch.no_grad()
def test_outputs_and_way_back(family, name, head):
    native = native_model(family, name, head)
    ours = from_native(native)
    assert type(ours).__name__ == OURS[head] and not ours.config.is_causal
    batch = rows(native.config)
    expected = outputs_of(native, batch)
    assert far(outputs_of(ours, batch), expected, batch["attention_mask"]) <= TOLERANCE
    assert min(tensor.std().item() for tensor in expected.values()) > 0.01
    # no mask: pads are tokens like any other, and RoBERTa counts positions past them
    plain = {key: value for key, value in batch.items() if key != "attention_mask"}
    counts = family in ("xlm", "flaubert")  # natively the mask is made of the number of ids that are no pads
    if head != "sequence_classification" and not counts:  # ours reads the mask from the pads there
        assert far(outputs_of(ours, plain), outputs_of(native, plain)) <= TOLERANCE
    back = to_native(ours)
    assert type(back) is type(native) and not back.training
    assert as_plain_dict(back.config) == as_plain_dict(native.config)
    before, after = native.state_dict(), back.state_dict()
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert torch.equal(tensor, after[key]) and tensor.dtype == after[key].dtype, key


@every_head
@torch.no_grad()
def test_left_padded_rows_equal_native_rows_alone(family, name, head):
    native = native_model(family, name, head)
    ours = from_native(native)
    batch = rows(native.config, side="left")
    found = outputs_of(ours, batch)
    for row, mask in enumerate(batch["attention_mask"].bool()):
        expected = outputs_of(native, {key: value[row : row + 1, mask] for key, value in batch.items()})
        alone = {key: value[row : row + 1] for key, value in found.items()}
        alone = {key: value[:, mask] if value.shape[1] == len(mask) else value for key, value in alone.items()}
        assert far(alone, expected) <= TOLERANCE


TRAINED = [case for case in HEADED if case[2] != "base"]


@pytest.mark.parametrize(("family", "name", "head"), [marked(*case) for case in TRAINED])
def test_loss_and_gradients(family, name, head):
    """In training, with every dropout at zero: also the rows of pads, which are trained in ours as natively."""
    native = native_model(family, name, head)
    ours = from_native(native).train()
    native.train()
    # natively the pads of a row are candidates for its answer; see the next test
    lengths = {"lengths": (14, 14, 14)} if head == "question_answering" else {}
    batch = rows(native.config, **lengths)
    batch["input_ids"][1, 3] = native.config.pad_token_id
    labels = labels_for(head, batch)
    expected, found = (model(**batch, **labels).loss for model in (native, ours))
    assert abs(found.item() - expected.item()) <= TOLERANCE
    expected.backward()
    found.backward()
    grads = {key: p.grad for key, p in native.named_parameters(remove_duplicate=False)}
    grads = {key: torch.zeros_like(native.state_dict()[key]) if grad is None else grad for key, grad in grads.items()}
    tied = tied_names(native, ours.config)
    grads = {key: grad for key, grad in grads.items() if key not in tied}
    mapped = apply_rules(find_family(family).rules(head), grads, ours.config)
    for key, parameter in ours.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        scale = max(1.0, mapped[key].abs().max().item())
        assert (grad - mapped[key]).abs().max().item() <= TOLERANCE * scale, key


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_pads_are_no_answer(side):
    """The loss of padded rows is the mean of native losses of rows alone, positions counted from their first tokens."""
    native = native_model("bert", "plain", "question_answering")
    ours = from_native(native)
    batch, (starts, ends) = rows(native.config, side=side), (torch.tensor([1, 0, 3]), torch.tensor([4, 13, 5]))
    first = batch["attention_mask"].argmax(dim=1)
    found = ours(**batch, start_positions=starts + first, end_positions=ends + first).loss
    alone = []
    for row, mask in enumerate(batch["attention_mask"].bool()):
        inputs = {key: value[row : row + 1, mask] for key, value in batch.items()}
        alone.append(native(**inputs, start_positions=starts[[row]], end_positions=ends[[row]]).loss)
    assert abs(found.item() - torch.stack(alone).mean().item()) <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "name"),
    [pytest.param(*case, marks=pytest.mark.slow if case[0] in RECOMBINED else ()) for case in FIRST.items()],
)
@torch.no_grad()
def test_through_folders_both_ways(family, name, tmp_path):
    """The head is that which the config names; what is saved by either side loads again with equal weights and config."""
    for head in find_family(family).heads:
        native = native_model(family, name, head, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
        native.save_pretrained(tmp_path / head / "native")
        ours = from_native(tmp_path / head / "native")
        assert type(ours).__name__ == OURS[head]
        assert ours.config.id2label == {0: "no", 1: "yes"}
        ours.save_pretrained(tmp_path / head / "ours")
        loaded = auto_class(head).from_pretrained(tmp_path / head / "ours")
        assert type(loaded) is type(ours)
        to_native(loaded).save_pretrained(tmp_path / head / "back")
        before, after = (load_file(tmp_path / head / part / "model.safetensors") for part in ("native", "back"))
        assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
        configs = [json.loads((tmp_path / head / part / "config.json").read_text()) for part in ("native", "back")]
        assert configs[0] == configs[1]


@pytest.mark.parametrize(("family", "name"), [("bert", "untied_relu"), ("modernbert", "mean_biased"), ("nomic_bert", "plain")])
def test_folders_are_streamed_with_the_proof(family, name, tmp_path):
    """The same through `convert_checkpoint`, shard by shard, with gradients where the head has a loss."""
    for head in find_family(family).heads:
        native = native_model(family, name, head)
        native.save_pretrained(tmp_path / head / "native", max_shard_size=20_000)
        report = convert_checkpoint(tmp_path / head / "native", tmp_path / head / "ours")
        assert (report["proof"]["gradients"] is None) == (head == "base")
        assert type(auto_class(head).from_pretrained(tmp_path / head / "ours")).__name__ == OURS[head]
        convert_checkpoint(tmp_path / head / "ours", tmp_path / head / "back")
        assert type(auto_class(head).from_pretrained(tmp_path / head / "back")) is type(native)
        verify_checkpoint(tmp_path / head / "back", tmp_path / head / "ours")


# ---- which head, and what else stands in a file ----
def test_parts_of_other_heads_are_left_out_with_a_warning(tmp_path, caplog):
    """bert-base-uncased is stored so: a masked language model beside a pooler and a next-sentence head."""
    native = native_model("bert", "plain", "masked_lm")
    native.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    extra = {"bert.pooler.dense.weight": torch.ones(48, 48), "bert.embeddings.position_ids": torch.arange(64)[None]}
    extra |= {"cls.seq_relationship.weight": torch.ones(2, 48)}
    save_file({**load_file(file), **extra}, file, metadata={"format": "pt"})
    ours = from_native(tmp_path)
    assert torch.equal(ours.lm_head.bias, native.cls.predictions.bias)
    save_file({**load_file(file), "bert.encoder.extra": torch.ones(1)}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"left over: \['bert.encoder.extra'\]"):
        from_native(tmp_path)


def test_a_head_can_be_named_and_must_exist(tmp_path):
    native = native_model("nomic_bert", "plain", "masked_lm")
    native.save_pretrained(tmp_path)
    assert type(from_native(tmp_path, head="base")).__name__ == "VariantsModel"
    with pytest.raises(ValueError, match="head='question_answering' is no head of nomic_bert; choose from"):
        from_native(tmp_path, head="question_answering")
    with pytest.raises(ValueError, match="missing:.*classifier"):
        from_native(tmp_path, head="token_classification")
    with pytest.raises(ValueError, match=r"\['head'\] say how to load"):
        from_native(native, head="base")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["NomicBertForPreTraining"]}))
    with pytest.raises(ValueError, match="NomicBertForPreTraining.*head="):
        from_native(tmp_path)


def test_a_head_that_a_family_lacks_is_named():
    from hf_variants import VariantsForQuestionAnswering

    config = from_native(native_model("nomic_bert", "plain", "base")).config
    with pytest.raises(ValueError, match="VariantsForQuestionAnswering cannot be converted: VariantsModel or .* is needed"):
        to_native(VariantsForQuestionAnswering(config))
    with pytest.raises(ValueError, match="bert cannot express"):
        to_native(VariantsForQuestionAnswering(config), "bert")


def test_a_fine_tuned_classifier_goes_out_with_its_labels(tmp_path):
    """From a native masked language model to a classifier of ours with other labels, and back."""
    from transformers import AutoModelForSequenceClassification

    from_native(native_model("bert", "plain", "masked_lm")).save_pretrained(tmp_path)
    tuned = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    back = to_native(tuned.eval())
    assert type(back).__name__ == "BertForSequenceClassification"
    assert back.config.num_labels == 5 and back.classifier.weight.shape == (5, 48)
    batch = rows(back.config)
    assert far(outputs_of(tuned, batch), outputs_of(back, batch)) <= TOLERANCE


def test_values_that_feed_nothing_are_said_to_be_left_out(caplog):
    import logging

    from transformers.utils import logging as library

    native = native_model("bert", "untied_relu", "masked_lm")
    native.cls.predictions.bias.data.fill_(1.0)
    library.enable_propagation()
    with caplog.at_level(logging.WARNING):
        ours = from_native(native)
    library.disable_propagation()
    assert "feeds nothing natively" in caplog.text
    assert torch.equal(ours.lm_head.bias, native.cls.predictions.decoder.bias)


@torch.no_grad()
def test_b39_an_untied_head_under_the_flag_keeps_both():
    native = native_model("bert", "plain", "masked_lm")
    native.cls.predictions.decoder.weight = torch.nn.Parameter(torch.randn(64, 48))
    native.cls.predictions.decoder.bias = torch.nn.Parameter(torch.randn(64))
    native.cls.predictions.bias.zero_()
    ours = from_native(native)
    assert ours.config.tie_word_embeddings is False
    batch = rows(native.config)
    assert far(outputs_of(ours, batch), outputs_of(native, batch), batch["attention_mask"]) <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "name", "changes", "reason"),
    [
        ("bert", "plain", {"is_decoder": True}, "is_decoder"),
        ("roberta", "plain", {"add_cross_attention": True}, "add_cross_attention"),
        ("mpnet", "plain", {"pad_token_id": 0}, "pad_token_id=0.*by the id 1"),
        ("mpnet", "plain", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets=16"),
        ("roberta", "plain", {"pad_token_id": None}, "pad_token_id=None.*positions"),
        ("ernie", "plain", {"use_task_id": True}, "use_task_id"),
        ("roformer", "narrow", {"rotary_value": True}, "rotary_value"),
        ("flaubert", "plain", {"pre_norm": True}, "pre_norm"),
        ("xlm", "plain", {"causal": True}, "causal"),
        ("xlm", "plain", {"asm": True}, "adaptive softmax"),
        ("xlm", "plain", {"n_langs": 3}, "embeddings of languages"),
        ("xlm", "plain", {"summary_type": "last"}, "summary_type='last'"),
        ("xlm", "plain", {"summary_activation": "tanh"}, "summary_type"),
    ],
)
def test_refused_native_configs(family, name, changes, reason):
    from hf_variants.convert import config_from_native

    with pytest.raises(ValueError, match=reason):
        config_from_native(native_config(family, name, **changes))
