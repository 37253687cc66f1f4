"""The real SmolLM2-135M: what is exact on random numbers is exact on trained ones and real text."""

from pathlib import Path

import pytest
import torch

from hf_variants.convert import from_native, to_native

KJV = Path(__file__).parents[2] / "recipes" / "data" / "kjv.txt"
pytestmark = pytest.mark.slow


def _text_ids(tokenizer, length):
    text = KJV.read_text(encoding="utf-8")[10_000:20_000]
    return tokenizer(text, return_tensors="pt").input_ids[:, :length]


@torch.no_grad()
def test_smollm2_logits_greedy_and_way_back(smollm2):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    native = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    ours = from_native(smollm2, dtype=torch.float32)
    ids = _text_ids(AutoTokenizer.from_pretrained(smollm2), 256)
    expected = native(input_ids=ids).logits
    assert (ours(input_ids=ids).logits - expected).abs().max().item() <= 1e-5
    prompt = {"input_ids": ids[:, :32], "attention_mask": torch.ones_like(ids[:, :32])}
    keywords = {"max_new_tokens": 64, "do_sample": False}
    assert ours.generate(**prompt, **keywords).tolist() == native.generate(**prompt, **keywords).tolist()
    back = to_native(ours)
    assert all(torch.equal(tensor, back.state_dict()[key]) for key, tensor in native.state_dict().items())


@torch.no_grad()
def test_smollm2_straight_from_gguf(smollm2, smollm2_gguf, tmp_path):
    folder, file = smollm2_gguf
    ours = from_native(folder, gguf_file=file, dtype=torch.float32)
    expected = from_native(smollm2, dtype=torch.float32).state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in ours.state_dict().items())
    ours.save_pretrained(tmp_path)
    assert to_native(ours).config.model_type == "llama"
