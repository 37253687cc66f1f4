"""B42: a tokenizer saved beside our config comes back from AutoTokenizer, in a fresh process, with equal ids."""

import json
import subprocess
import sys

import pytest

from hf_variants.training.specs import TokenizerSpec
from hf_variants.training.tokenizer import is_tokenizer_directory, load_tokenizer, train_tokenizer

MIXED = [
    "Hello  world\n\n\tindented   trailing   ",
    "你好，世界！今天是2024年。",
    "日本語とかな、한국어",
    "emoji 🎉👩‍👩‍👧‍👦 café e\u0301 नमस्ते",
    "def f(x):\n    return x ** 2  # 12345",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(MIXED * 20, TokenizerSpec(vocab_size=350))


def test_ids_and_text_survive(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "variants", "vocab_size": len(tokenizer)}))
    code = (
        "import sys, json; from transformers import AutoTokenizer; t = AutoTokenizer.from_pretrained(sys.argv[1]);"
        "texts = json.loads(sys.argv[2]); ids = t(texts)['input_ids'];"
        "print(json.dumps([ids, t.batch_decode(ids, skip_special_tokens=True)]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), json.dumps(MIXED)]
    ids, texts = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    assert ids == tokenizer(MIXED)["input_ids"]
    assert texts == MIXED
    assert is_tokenizer_directory(tmp_path)


def test_bos_begins_and_no_token_is_unknown(tokenizer):
    ids = tokenizer("a text")["input_ids"]
    assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.eos_token_id not in ids
    unseen = "ᚠᛇᚻ \x00 \U0001f9ff"
    assert tokenizer.decode(tokenizer(unseen)["input_ids"], skip_special_tokens=True) == unseen


def test_vocabulary_size_is_kept(tokenizer):
    assert len(tokenizer) == 350
    assert len({tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}) == 3


def test_impossible_specs():
    with pytest.raises(ValueError, match="vocab_size=100 must be at least 259"):
        train_tokenizer(MIXED, TokenizerSpec(vocab_size=100))
    with pytest.raises(ValueError, match="must differ"):
        train_tokenizer(MIXED, TokenizerSpec(bos_token="<s>", eos_token="<s>"))


def test_missing_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
