"""B42: a converted folder is read by the tokenizer class that reads its source, though AutoTokenizer chooses by model type."""

import json

from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertTokenizer

from hf_variants.convert import convert_checkpoint
from hf_variants.convert.checkpoint_conversion import verify_checkpoint
from tests.convert.native_cases import native_model
from tests.tokenizers_for_tests import HARD_TEXTS, byte_level_bpe


def save_tokenizer(tokenizer, folder, named):
    """Save a tokenizer with another `tokenizer_class`, or with none, as many published folders have it."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = {**json.loads(path.read_text()), "tokenizer_class": named}
    settings = {name: value for name, value in settings.items() if value is not None and name != "mask_token"}
    path.write_text(json.dumps(settings))


def test_a_wrong_name_that_the_native_type_passes_over(tmp_path):
    native_model("glm4", "biased").save_pretrained(tmp_path / "native")
    save_tokenizer(byte_level_bpe(), tmp_path / "native", "Qwen2Tokenizer")
    report = convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    native, ours = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("native", "ours"))
    assert all(ours(text)["input_ids"] == native(text)["input_ids"] for text in HARD_TEXTS)
    assert report["tokenizer_class"] == "TokenizersBackend" and "tokenizer_config.json" not in report["kept"]
    verify_checkpoint(tmp_path / "ours")
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    back = AutoTokenizer.from_pretrained(tmp_path / "back")
    assert all(back(text)["input_ids"] == native(text)["input_ids"] for text in HARD_TEXTS)


def test_a_class_that_only_the_model_type_names(tmp_path):
    """Old folders of BERT name no class and no mask token: both are known by the model type."""
    words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s"])}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForMaskedLM(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(tmp_path / "native")
    save_tokenizer(BertTokenizer(vocab=words), tmp_path / "native", None)
    assert convert_checkpoint(tmp_path / "native", tmp_path / "ours")["tokenizer_class"] == "BertTokenizer"
    ours = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert ours.mask_token == "[MASK]" and ours("the dogs")["input_ids"] == [2, 5, 6, 7, 3]
