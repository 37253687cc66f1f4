"""Folders of vision-language models, converted and proven by the function and the command line."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from hf_variants import cli
from hf_variants.convert import convert_checkpoint, verify_checkpoint
from hf_variants.convert.proof import ProofError
from tests.convert.test_vision_families import native_of
from tests.tokenizers_for_tests import byte_level_bpe

OTHERS = ("llava_all_states", "paligemma2_beyond_the_vocabulary", "gemma3", "internvl", "aya_vision")


@pytest.mark.parametrize("name", ["idefics3", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_there_and_back(tmp_path, name):
    native = native_of(name)
    native.save_pretrained(tmp_path / "native")
    byte_level_bpe().save_pretrained(tmp_path / "native")
    report = convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    assert report["proof"]["logits"]["difference"] <= 1e-5 and "tokenizer.json" in report["kept"]
    assert (tmp_path / "ours/modeling_variants_vision.py").is_file() and (tmp_path / "ours/tokenizer.json").is_file()
    text = (tmp_path / "ours/README.md").read_text()
    assert "## Conversion" in text and str(tmp_path) not in text + (tmp_path / "ours/conversion_report.json").read_text()
    assert verify_checkpoint(tmp_path / "ours")["proof"]["weights"] == report["proof"]["weights"]
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "back").state_dict()
    assert all(torch.equal(tensor, again[key]) for key, tensor in native.state_dict().items())
    files = {path.name for path in (tmp_path / "back").iterdir()}
    assert not any(file.endswith(".py") for file in files) and "auto_map" not in (tmp_path / "back/config.json").read_text()


def test_the_command_line_and_a_damaged_copy(tmp_path, capsys):
    native_of("llava").save_pretrained(tmp_path / "native")
    for arguments in ([str(tmp_path / "native"), str(tmp_path / "ours")], ["--verify", str(tmp_path / "ours")]):
        with pytest.raises(SystemExit) as stop:
            cli.main(["convert", *arguments])
        assert stop.value.code == 0 and "bitwise equal" in capsys.readouterr().out
    state = load_file(tmp_path / "ours/model.safetensors")
    state["model.multi_modal_projector.projector.linear_1.weight"][0, 0] += 1
    save_file(state, tmp_path / "ours/model.safetensors", {"format": "pt"})
    with pytest.raises(ProofError, match="multi_modal_projector"):
        verify_checkpoint(tmp_path / "ours")


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path):
    native_of("llava").save_pretrained(tmp_path / "native")
    for options, message in [
        ({"to": "native"}, "is of that kind already .llava"),
        ({"family": "llava"}, "names a native type to write"),
        ({"max_shard_size": "1MB"}, r"\['max_shard_size'\] are for text models"),
    ]:
        with pytest.raises(ValueError, match=message):
            convert_checkpoint(tmp_path / "native", tmp_path / "ours", **options)
    config = json.loads((tmp_path / "native/config.json").read_text())
    config["vision_feature_select_strategy"] = "half"
    (tmp_path / "native/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="cannot be read: .*vision_feature_select_strategy"):
        convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
