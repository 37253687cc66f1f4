"""Encoders in the tools around them: pipelines, LoRA, masked-language training, sentence embeddings."""

import pytest
import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast, pipeline

from hf_variants import (
    VariantsForMaskedLM,
    VariantsForSequenceClassification,
    VariantsForTokenClassification,
    VariantsModel,
)
from tests.training_model.support import trainer_of
from tests.variants import ENCODERS, build, draw_ids, far, tiny

WORDS = ["[PAD]", "[UNK]", "[MASK]", *(f"w{index}" for index in range(58))]


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]")


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_pipelines(name):
    config, words = tiny(name, num_labels=3), tokenizer()
    text = "w4 w5 w6"
    filled = pipeline("fill-mask", build(config), tokenizer=words)("w4 [MASK] w6")
    assert len(filled) == 5 and all(found["token_str"] in WORDS for found in filled)
    features = pipeline("feature-extraction", build(config, VariantsModel), tokenizer=words)(text)
    assert len(features[0]) == 3 and len(features[0][0]) == config.hidden_size
    classes = pipeline("text-classification", build(config, VariantsForSequenceClassification), tokenizer=words)(text)
    assert classes[0]["label"].startswith("LABEL_")
    tags = pipeline("token-classification", build(config, VariantsForTokenClassification), tokenizer=words)(text)
    assert [tag["word"] for tag in tags] == text.split()


def test_masked_language_training_learns(tmp_path):
    torch.manual_seed(0)
    words = tokenizer()
    collator = DataCollatorForLanguageModeling(words, mlm_probability=0.3)
    rows = [{"input_ids": torch.arange(3, 15) + start % 4} for start in range(16)]
    model = VariantsForMaskedLM(tiny("bert"))
    trainer = trainer_of(model, rows, tmp_path, max_steps=40, optim="adamw_torch", learning_rate=5e-3, logging_steps=10)
    trainer.data_collator = collator
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_lora_trains_the_classifier_and_merges(name):
    peft = pytest.importorskip("peft")
    model = build(tiny(name, num_labels=3), VariantsForSequenceClassification)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", target_modules="all-linear", r=4))
    trained = {key for key, p in adapted.named_parameters() if p.requires_grad}
    assert any("score" in key and "modules_to_save" in key for key in trained)
    assert all(
        any(f"layers.{layer}.self_attn.{part}_proj.lora_A" in key for key in trained) for layer in (0, 1) for part in "qkvo"
    )
    for key, parameter in adapted.named_parameters():
        if "lora_B" in key:
            parameter.data.normal_(std=0.1)
    ids = draw_ids(2, 7)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        live = adapted.eval()(**inputs).logits
        assert far(adapted.merge_and_unload()(**inputs).logits, live) <= 1e-4


@pytest.mark.parametrize("name", ENCODERS)
def test_sentence_embeddings_do_not_depend_on_padding(name):
    model, ids = build(tiny(name), VariantsModel), draw_ids(1, 9)
    alone = model.sentence_embeddings(ids)
    assert alone.norm(dim=-1).item() == pytest.approx(1.0, abs=1e-5)
    for pads in ((0, 4), (4, 0)):
        padded = torch.nn.functional.pad(ids, pads)
        assert far(model.sentence_embeddings(padded, (padded != 0).long()), alone) <= 1e-5
    with pytest.raises(ValueError, match="one text per row"):
        model.sentence_embeddings(ids, position_ids=torch.zeros_like(ids))


def test_token_types_are_checked():
    ids = draw_ids(1, 4)
    with pytest.raises(ValueError, match="type_vocab_size=3 rows"):
        build(tiny("token_types"))(ids, token_type_ids=torch.full_like(ids, 3))
    with pytest.raises(ValueError, match="type_vocab_size=0"):
        build(tiny("eurobert"))(ids, token_type_ids=torch.ones_like(ids))


def test_a_pooler_that_was_not_saved_is_named(tmp_path):
    build(tiny("bert")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pooler=False"):
        VariantsModel.from_pretrained(tmp_path)
    assert VariantsModel.from_pretrained(tmp_path, pooler=False, task_head="linear").pooler is None
    VariantsForSequenceClassification.from_pretrained(tmp_path)  # a fresh head may have a fresh pooler
