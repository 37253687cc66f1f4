"""`hf-variants convert`: its options are those of `convert_checkpoint`, its numbers those of the report."""

import inspect
import json
import sys
from pathlib import Path

import pytest

from hf_variants import cli
from hf_variants.cli.convert import convert
from hf_variants.convert import convert_checkpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "convert"))


@pytest.fixture
def native(tmp_path):
    from native_cases import native_model

    native_model("qwen2", "full").save_pretrained(tmp_path / "native")
    return tmp_path / "native"


def _run(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        cli.main(["convert", *map(str, words)])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, " ".join(captured.err.split())


def test_options_are_those_of_python():
    python = set(inspect.signature(convert_checkpoint).parameters) - {"progress", "tokenizer"}
    assert set(inspect.signature(convert).parameters) == python | {"verify"}


def test_there_and_back_and_verified(capsys, native, tmp_path):
    code, out, err = _run(capsys, native, tmp_path / "ours", "--dtype", "bfloat16", "--max-shard-size", "20KB")
    assert code == 0 and "100%" in err
    report = json.loads((tmp_path / "ours" / "conversion_report.json").read_text())
    assert "Qwen2ForCausalLM (native)" in out and "bfloat16" in out and f"{report['parameters']:,} parameters" in out
    assert f"all {report['proof']['weights']} tensors bitwise equal" in out and "kept: generation_config.json" in out
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 1
    code, out, _ = _run(capsys, tmp_path / "ours", tmp_path / "back", "--to", "native", "--family", "qwen2")
    assert code == 0 and "Qwen2ForCausalLM" in out
    for words in ([tmp_path / "back"], [native, tmp_path / "ours"]):
        code, out, _ = _run(capsys, "--verify", *words)
        assert code == 0 and "verified" in out and "bitwise equal" in out


def test_mistakes_are_one_red_line(capsys, native, tmp_path):
    for words, text in (
        ([native], "convert needs two names"),
        ([native, tmp_path / "out", "--to", "onnx"], "to='onnx' is unknown"),
        ([native, tmp_path / "out", "--family", "llama"], "leave it out"),
        (["--verify", native, "--dtype", "float32"], "--dtype say what to write, but --verify only reads"),
        (["--verify", native], "holds no conversion_report.json; give the source"),
        ([native, native], "is not empty"),
        ([native, tmp_path / "out", "--no-proof"], "No such option: --no-proof"),
    ):
        code, _, err = _run(capsys, *words)
        assert code == 2 and text in err and "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["native"]
