"""Where sources lie and results go, and what lies beside the weights: named where it cannot be, else kept or said to stay.

Notable here: SRC is byte for byte as before, and a refusal leaves nothing, not even folders made on the way.
"""

import json
import os

import pytest
import torch
from native_cases import native_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hf_variants.convert import convert_checkpoint, verify_checkpoint
from hf_variants.convert.new_folder import check_free, left_behind, new_folder
from hf_variants.convert.proof import ProofError
from tests.convert.test_vision_families import native_of


@pytest.fixture
def source(tmp_path):
    native_model("llama", "plain", num_hidden_layers=1).save_pretrained(tmp_path / "native")
    return tmp_path / "native"


def _edit(file, **keys):
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))


# ---- places ----
def test_places_that_cannot_be(tmp_path, monkeypatch):
    for path in ("x" * 300, "a\0b"):
        with pytest.raises(ValueError, match="is no path of a folder: "):
            check_free(tmp_path / path)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for path in (".", "", "../empty", tmp_path / "empty"):
        with pytest.raises(ValueError, match="is the folder that this runs in; name another"):
            check_free(path)


def test_folders_made_on_the_way_go_with_what_failed(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(KeyError), new_folder(tmp_path / "a" / "b" / "c" / "out"):
        raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]
    with pytest.raises(KeyError), new_folder(tmp_path / "a" / "b" / "c" / "out"):
        (tmp_path / "a" / "b" / "others").mkdir()
        raise KeyError
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "others"]


def test_remains_are_found_whatever_the_name(tmp_path):
    for name in ("o[u]t*", "out"):
        (tmp_path / f".{name}.partial-abc").mkdir()
        assert [path.name for path in left_behind(tmp_path / name)] == [f".{name}.partial-abc"]


@pytest.mark.slow
def test_a_snapshot_of_links_converts_into_files(source, tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    (source / "tokenizer.json").write_text("{}")
    for number, path in enumerate(sorted(source.iterdir())):
        path.rename(tmp_path / "blobs" / str(number))
        (tmp_path / "snapshot" / path.name).symlink_to(os.path.join("..", "blobs", str(number)))
    convert_checkpoint(tmp_path / "snapshot", tmp_path / "snapshot" / "out")
    assert not any(path.is_symlink() for path in (tmp_path / "snapshot" / "out").iterdir())
    assert verify_checkpoint(tmp_path / "snapshot" / "out")["source"]["name"] == "snapshot"
    report = json.loads((tmp_path / "snapshot" / "out" / "conversion_report.json").read_text())
    assert "tokenizer.json" in report["kept"] and report["left"] == []


# ---- files beside the weights ----
@pytest.mark.parametrize(
    ("name", "data", "match"),
    [
        ("tokenizer_config.json", b"{", r"tokenizer_config.json' is not valid JSON"),
        ("tokenizer_config.json", b"[]", "tokenizer_config.json' holds a list"),
        ("README.md", b"\xff\xfe\x00", "README.md is no text in UTF-8"),
        ("dead.json", None, "dead.json is no file that can be read"),
    ],
)
def test_files_that_cannot_be_read_are_named(name, data, match, source, tmp_path):
    if data is None:
        (source / name).symlink_to("nowhere")
    else:
        (source / name).write_bytes(data)
    with pytest.raises(ValueError, match=match) as caught:
        convert_checkpoint(source, tmp_path / "a" / "out")
    assert "\n" not in str(caught.value) and [path.name for path in tmp_path.iterdir()] == ["native"]


@pytest.mark.slow
@pytest.mark.parametrize("auto_map", [[], "x", {"AutoTokenizer": 3}, {"AutoTokenizer": ["tokenization_own.Own", None]}])
def test_strange_words_beside_the_weights_do_no_harm(auto_map, source, tmp_path):
    """Metadata that no YAML reader takes comes back as it was; hidden files are said to stay behind."""
    (source / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto_map}))
    (source / "tokenization_own.py").write_text("own = True")
    (source / ".gitattributes").write_text("*")
    (source / "README.md").write_text("---\nlicense: [\n---\nwords")
    _edit(source / "config.json", unheard_of=float("nan"))
    report = convert_checkpoint(source, tmp_path / "ours")
    assert ".gitattributes" in report["left"]
    assert ("tokenization_own.py" in report["kept"]) == (auto_map == {"AutoTokenizer": ["tokenization_own.Own", None]})
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    assert (tmp_path / "back" / "README.md").read_text().startswith("---\nlicense: [\n---\nwords")
    assert verify_checkpoint(tmp_path / "back")["proof"]["weights"]


@pytest.mark.slow
def test_what_a_config_says_of_generation_is_kept(source, tmp_path):
    """transformers reads it from config.json where there is no generation_config.json."""
    (source / "generation_config.json").unlink()
    convert_checkpoint(source, tmp_path / "silent")
    assert not (tmp_path / "silent" / "generation_config.json").exists()
    said = {"num_beams": 4, "no_repeat_ngram_size": 3, "max_length": 50}
    _edit(source / "config.json", **said)
    convert_checkpoint(source, tmp_path / "ours")
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    for folder in (source, tmp_path / "ours", tmp_path / "back"):
        found = AutoModelForCausalLM.from_pretrained(folder).generation_config
        assert {key: getattr(found, key) for key in said} == said
    verify_checkpoint(tmp_path / "ours")


# ---- --verify ----
@pytest.mark.slow
def test_verify_without_a_report_reads_the_files_too(source, tmp_path):
    (source / "chat_template.jinja").write_text("{{ messages }}")
    convert_checkpoint(source, tmp_path / "ours")
    for kept in (3, [3], ["../native/config.json"]):
        _edit(tmp_path / "ours" / "conversion_report.json", kept=kept)
        with pytest.raises(ValueError, match="is no report of a conversion"):
            verify_checkpoint(tmp_path / "ours")
    (tmp_path / "ours" / "conversion_report.json").unlink()
    verify_checkpoint(tmp_path / "ours", source)
    (tmp_path / "ours" / "chat_template.jinja").write_text("{{ other }}")
    with pytest.raises(ProofError, match=r"files that went along differ .*\['chat_template.jinja'\]"):
        verify_checkpoint(tmp_path / "ours", source)
    (tmp_path / "ours" / "chat_template.jinja").write_text("{{ messages }}")
    file = tmp_path / "ours" / "model.safetensors"
    state = load_file(file)
    state["model.norm.weight"].view(torch.uint8)[5] ^= 1
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(ProofError, match=r"model\.norm\.weight is not bitwise equal"):
        verify_checkpoint(tmp_path / "ours", source)


@pytest.mark.slow
def test_verify_of_a_model_of_images_reads_config_and_files(tmp_path):
    native, ours = tmp_path / "native", tmp_path / "ours"
    native_of("llava").save_pretrained(native)
    (native / "preprocessor_config.json").write_text("{}")
    convert_checkpoint(native, ours)
    whole = (ours / "config.json").read_text()
    for part, key, value in [
        (None, "image_token_id", 7),
        ("text_config", "norm_eps", 0.3),
        ("text_config", "eos_token_id", 9),
        ("vision_config", "layer_norm_eps", 0.2),
    ]:
        config = json.loads(whole)
        (config if part is None else config[part])[key] = value
        (ours / "config.json").write_text(json.dumps(config))
        with pytest.raises(ProofError, match=f"the config differs .*{key} is {value}"):
            verify_checkpoint(ours)
    (ours / "config.json").write_text(whole)
    verify_checkpoint(ours)
    (ours / "preprocessor_config.json").write_text("[]")
    with pytest.raises(ProofError, match="preprocessor_config.json"):
        verify_checkpoint(ours)


@pytest.mark.slow
def test_the_proof_of_a_model_of_images_runs_the_source(tmp_path, monkeypatch):
    """A setting that is read wrongly and written back as wrongly: only the source itself can tell."""
    from hf_variants.convert import model_conversion

    read = model_conversion.vision_config_from_native

    def wrong(native):
        config = read(native)
        config.text_config.norm_eps *= 100
        return config

    native_of("llava").save_pretrained(tmp_path / "native")
    monkeypatch.setattr(model_conversion, "vision_config_from_native", wrong)
    with pytest.raises(ProofError, match="logits differ"):
        convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["native"]
