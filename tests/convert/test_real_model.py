"""The real SmolLM2-135M: what is exact on random numbers is exact on trained ones and real text."""

from pathlib import Path

import pytest
import torch

from hf_variants.convert import from_native, to_native
from tests.convert.bits import assert_same_bits

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
def test_smollm2_through_folders_on_two_thousand_tokens_of_text(smollm2, tmp_path):
    """The folder that a conversion writes computes what the source computes, and the folder back holds its weights."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hf_variants.convert import convert_checkpoint

    report = convert_checkpoint(smollm2, tmp_path / "ours")
    assert report["proof"]["logits"]["difference"] <= 1e-5 and len(report["proof"]["layers"]) == 30
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    ids = _text_ids(tokenizer, 2000)
    assert ids.shape == (1, 2000) and torch.equal(ids, _text_ids(AutoTokenizer.from_pretrained(smollm2), 2000))
    native, ours = (AutoModelForCausalLM.from_pretrained(folder, dtype="float32") for folder in (smollm2, tmp_path / "ours"))
    outputs = [model(input_ids=ids, output_hidden_states=True) for model in (native, ours)]
    for expected, found in zip(*(output.hidden_states for output in outputs), strict=True):
        assert (found - expected).abs().max().item() <= 1e-5 * max(1.0, expected.abs().max().item())
    assert (outputs[1].logits - outputs[0].logits).abs().max().item() <= 1e-5 * outputs[0].logits.abs().max().item()
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    before, after = (load_file(Path(folder) / "model.safetensors") for folder in (smollm2, tmp_path / "back"))
    assert_same_bits(before, after)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "back" / name).read_bytes() == (Path(smollm2) / name).read_bytes()


def test_smollm2_folder_from_gguf(smollm2, smollm2_gguf, tmp_path):
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    from hf_variants.convert import convert_checkpoint

    folder, file = smollm2_gguf
    report = convert_checkpoint(folder, tmp_path / "ours", gguf_file=file, dtype="float32")
    assert report["source"]["gguf_file"] == file
    found, expected = (load_file(Path(path) / "model.safetensors") for path in (tmp_path / "ours", smollm2))
    assert_same_bits(found, expected)
    tokenizer, known = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "ours", smollm2))
    assert tokenizer.chat_template == known.chat_template and tokenizer.chat_template
    assert torch.equal(_text_ids(tokenizer, 500), _text_ids(known, 500))


@torch.no_grad()
def test_smollm2_straight_from_gguf(smollm2, smollm2_gguf, tmp_path):
    folder, file = smollm2_gguf
    ours = from_native(folder, gguf_file=file, dtype=torch.float32)
    expected = from_native(smollm2, dtype=torch.float32).state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in ours.state_dict().items())
    ours.save_pretrained(tmp_path)
    assert to_native(ours).config.model_type == "llama"
