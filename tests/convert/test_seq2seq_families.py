"""Encoder-decoders: a native model and its conversion are the same function, generate the same, and come back bitwise.

Covers known failures B15 and B39 for two stacks.
"""

import re

import pytest
import torch
from seq2seq_cases import CASES, native_config, native_model, rows
from transformers import AutoModelForSeq2SeqLM
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

from hf_variants import VariantsConfig
from hf_variants.convert import (
    config_from_native,
    config_to_native,
    convert_checkpoint,
    find_family,
    from_native,
    to_native,
    verify_checkpoint,
)
from hf_variants.convert.config_conversion import as_plain_dict
from hf_variants.convert.left_out import LEFT_OUT
from hf_variants.convert.registry import family_names
from hf_variants.convert.skeletons import tied_names
from hf_variants.convert.weight_rules import apply_rules

TOLERANCE = 1e-5
every_case = pytest.mark.parametrize("case", CASES, ids=["-".join(case) for case in CASES])


def decoded(batch, length=7, seed=3):
    return torch.randint(4, 50, (len(batch["input_ids"]), length), generator=torch.Generator().manual_seed(seed))


def test_every_family_of_two_stacks_has_cases():
    assert {name for name in family_names() if find_family(name).two_stacks} == {family for family, _ in CASES}


def test_every_encoder_decoder_of_transformers_converts_or_says_why_not():
    names = {name for name in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES if not name.startswith("variants")}
    assert len(names) > 30
    assert not names - {family for family, _ in CASES} - set(LEFT_OUT)


@every_case
@torch.no_grad()
def test_outputs_generation_and_way_back(case):
    native = native_model(case)
    ours = from_native(native)
    assert type(ours).__name__ == "VariantsForSeq2SeqLM" and ours.config.tie_word_embeddings != CASES[case][1]
    batch = rows(native.config)
    ids = decoded(batch)
    expected, found = (model(**batch, decoder_input_ids=ids).logits for model in (native, ours))
    assert (found - expected).abs().max().item() <= TOLERANCE * max(1.0, expected.abs().max().item())
    assert expected.std().item() > 0.01
    start = {"decoder_start_token_id": 3} if ours.config.decoder_start_token_id is None else {}
    options = {"max_new_tokens": 8, "do_sample": False, **start}
    for more in ({}, {"num_beams": 3}):
        # natively the cache of T5 has as many layers as the encoder
        plain = native.generate(**batch, **options, **more, use_cache=False)
        assert torch.equal(plain, ours.generate(**batch, **options, **more))
    back = to_native(ours)
    assert type(back) is type(native) and as_plain_dict(back.config) == as_plain_dict(native.config)
    before, after = native.state_dict(), back.state_dict()
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert torch.equal(tensor, after[key]) and tensor.dtype == after[key].dtype, key


@every_case
@torch.no_grad()
def test_left_padded_rows_equal_native_rows_alone(case):
    native = native_model(case)
    ours = from_native(native)
    batch = rows(native.config, side="left")
    ids = decoded(batch)
    found = ours(**batch, decoder_input_ids=ids).logits
    for row, mask in enumerate(batch["attention_mask"].bool()):
        alone = batch["input_ids"][row : row + 1, mask]
        inputs = {"input_ids": alone, "attention_mask": torch.ones_like(alone), "decoder_input_ids": ids[row : row + 1]}
        expected = native(**inputs).logits
        assert (found[row : row + 1] - expected).abs().max().item() <= TOLERANCE * max(1.0, expected.abs().max().item())


@every_case
def test_loss_and_gradients(case):
    """With labels alone: decoder inputs are made of them, begun as natively; skipped labels are pads there."""
    native = native_model(case)
    ours = from_native(native).train()
    native.train()
    batch = rows(native.config)
    labels = decoded(batch)
    labels[1, 4:] = -100
    expected, found = (model(**batch, labels=labels.clone()).loss for model in (native, ours))
    assert abs(found.item() - expected.item()) <= TOLERANCE
    expected.backward()
    found.backward()
    tied = tied_names(native, ours.config)
    named = {key: p for key, p in native.named_parameters(remove_duplicate=False) if key not in tied}
    grads = {key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in named.items()}
    if case[0] in ("marian", "pegasus"):  # what stands for the table of sinusoids, which has no gradient
        rules = [rule for rule in find_family(case[0]).rules() if len(rule.native) == 1]
        grads = {key: grad for key, grad in grads.items() if "embed_positions" not in key}
    else:
        rules = find_family(case[0]).rules()
    mapped = apply_rules(rules, grads, ours.config)
    own = set(tied_names(ours, ours.config))
    for key, parameter in ours.named_parameters(remove_duplicate=False):
        if key in own:
            continue
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        scale = max(1.0, mapped[key].abs().max().item())
        assert (grad - mapped[key]).abs().max().item() <= TOLERANCE * scale, key


@every_case
def test_through_folders_both_ways(case, tmp_path):
    native = native_model(case)
    native.save_pretrained(tmp_path / "native")
    ours = from_native(tmp_path / "native")
    assert ours.config.tie_word_embeddings != CASES[case][1]
    ours.save_pretrained(tmp_path / "ours")
    to_native(type(ours).from_pretrained(tmp_path / "ours")).save_pretrained(tmp_path / "back")
    again = type(native).from_pretrained(tmp_path / "back")
    before, after = native.state_dict(), again.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)


PROVEN = [
    *(("t5", "tied and scaled"), ("t5", "gated with its own head"), ("bart", "plain"), ("marian", "shared")),
    *(("pegasus", "scaled"), ("marian", "two vocabularies, untied"), ("t5gemma", "two sizes, untied")),
    *(("umt5", "own head, relu"), ("m2m_100", "pad 3")),
]


@pytest.mark.parametrize("case", PROVEN, ids=["-".join(case) for case in PROVEN])
def test_folders_are_streamed_with_the_proof(case, tmp_path):
    """Through `convert_checkpoint`, shard by shard: every weight both ways, every layer, one loss and all gradients."""
    native = native_model(case)
    native.save_pretrained(tmp_path / "native", max_shard_size=20_000)
    report = convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    assert report["proof"]["gradients"] is not None and len(report["proof"]["layers"]) == 5
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert type(ours).__name__ == "VariantsForSeq2SeqLM"
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    again = type(native).from_pretrained(tmp_path / "back")
    before, after = native.state_dict(), again.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    verify_checkpoint(tmp_path / "back", tmp_path / "ours")


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        (("bart", "plain"), {"tie_word_embeddings": False}, "tie_word_embeddings=False.*feeds nothing"),
        (("longt5", "tied and scaled"), {"encoder_attention_type": "transient-global"}, "encoder_attention_type='transient-"),
        (("mvp", "plain"), {"use_prompt": True}, "use_prompt=True.*keys and values"),
        (("m2m_100", "scaled"), {"pad_token_id": None}, "pad_token_id=None.*begin behind"),
        (("m2m_100", "scaled"), {"decoder_start_token_id": 1}, "decoder_start_token_id=1.*no position"),
        (("marian", "shared"), {"tie_word_embeddings": False}, "feeds nothing"),
        (("t5", "tied and scaled"), {"decoder_start_token_id": None}, "decoder_start_token_id=None"),
    ],
)
def test_refused_native_configs(case, changes, words):
    with pytest.raises(ValueError, match=words):
        config_from_native(native_config(case, **changes))


def test_a_toggle_that_a_family_lacks_is_named():
    config = from_native(native_model(("bart", "plain"))).config
    config.decoder.attn_logit_softcapping = 3.0
    with pytest.raises(ValueError, match="bart cannot express decoder.attn_logit_softcapping=3.0"):
        config_to_native(config)
    with pytest.raises(ValueError, match="llama cannot express"):
        config_to_native(config, "llama")


@pytest.mark.parametrize("case", [("t5", "tied and scaled"), ("bart", "plain")], ids=lambda case: case[0])
def test_dropouts_go_in_and_out(case):
    rates = {"dropout_rate": 0.1} if case[0] != "bart" else {"dropout": 0.1, "activation_dropout": 0.2}
    native = native_model(case, **rates)
    ours = from_native(native)
    stack = ours.config.decoder
    assert (stack.hidden_dropout, stack.embedding_dropout) == (0.1, 0.1)
    assert stack.activation_dropout == (0.2 if case[0] == "bart" else 0.1)
    assert stack.final_dropout == (0.0 if case[0] == "bart" else 0.1)
    assert as_plain_dict(to_native(ours).config) == as_plain_dict(native.config)
    torch.manual_seed(0)
    batch = rows(native.config)
    found = {ours.train()(**batch, decoder_input_ids=decoded(batch)).logits.sum().item() for _ in range(3)}
    assert len(found) == 3


def test_a_single_stack_is_compared_with_single_stacks_alone():
    """An encoder-decoder is never the family that comes closest to a decoder, nor one that could write it."""
    with pytest.raises(ValueError) as caught:
        config_to_native(VariantsConfig(position_embedding_type="sinusoidal", attention_type="mla"))
    assert not [name for name, _ in CASES if re.search(rf"\b{name}\b", str(caught.value))]
