"""The command line: its keys are the dataclass's, mistakes are one red line with exit code 2, and help needs no work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hf_variants import cli
from hf_variants.jobs.specs import (
    AblateSpec,
    EvaluateSpec,
    ExtendSpec,
    ExtrapolateSpec,
    FinetuneSpec,
    GenerateSpec,
    QuantizeSpec,
    QuickstartSpec,
    Seq2SeqSpec,
)
from hf_variants.training.spec_parsing import describe_keys, load_spec
from hf_variants.training.specs import TrainingSpec

RECIPES = {
    "pretrain": TrainingSpec,
    "extend": ExtendSpec,
    "finetune": FinetuneSpec,
    "seq2seq": Seq2SeqSpec,
    "ablate": AblateSpec,
    "extrapolate": ExtrapolateSpec,
    "quantize": QuantizeSpec,
    "evaluate": EvaluateSpec,
    "generate": GenerateSpec,
    "quickstart": QuickstartSpec,
}


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of the command line."""
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_help_lists_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(name in out for name in (*RECIPES, "describe", "diff", "families"))


@pytest.mark.parametrize("command", [name for name in RECIPES if name != "quickstart"])
def test_help_of_a_command_lists_every_key(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    shown = "".join(out.split())
    for key, _, _, text in describe_keys(RECIPES[command]):
        assert key in out and "".join(text.split()) in shown


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipes_are_valid(name):
    load_spec(RECIPES[name], f"recipes/{name}.yaml")


@pytest.mark.parametrize("path", sorted(Path("recipes/finetune").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_fine_tuning_recipes_are_valid(path):
    from hf_variants.finetune.specs import check_keys
    from hf_variants.finetune.trainers import arguments_of

    spec = load_spec(FinetuneSpec, path)
    check_keys(spec)
    assert arguments_of(spec).output_dir == spec.output_dir


def test_shipped_recipes_of_encoder_decoders_are_checked_whole():
    from hf_variants.seq2seq.run import check_spec
    from hf_variants.training.models import check_model_entry
    from hf_variants.training.pretraining import check_parts

    check_spec(load_spec(Seq2SeqSpec, "recipes/seq2seq.yaml"))
    corruption = load_spec(TrainingSpec, "recipes/span_corruption.yaml")
    check_model_entry(corruption)
    check_parts(corruption)


def test_shipped_recipes_chain():
    from hf_variants.jobs.whole_job import stage_specs
    from hf_variants.training.arguments import check_trainer_section

    specs = stage_specs(load_spec(QuickstartSpec, "recipes/quickstart.yaml"))
    assert specs["extend"].model_path == specs["pretrain"].output_dir == "runs/quickstart/pretrained"
    assert specs["awq"].method == "awq" and specs["rtn"].method == "rtn"
    assert specs["pretrain"].data.sequence_length * specs["extend"].factor == specs["extend"].data.sequence_length
    for name in ("pretrain", "extend"):
        check_trainer_section(specs[name].trainer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "--modl_path", "x"], "unknown key 'modl_path' (did you mean 'model_path'?)"),
        (["evaluate"], "key 'model_path' is missing"),
        (["evaluate", "--config", "absent.yaml"], "config='absent.yaml' is not a file"),
        (["evaluate", "absent.yaml"], "config='absent.yaml' is not a file"),
        (["quickstart", "absent.yaml"], "config='absent.yaml' is not a file"),
        (["generate", "recipes/generate.yaml", "generation.max_new_token=3"], "(did you mean 'max_new_tokens'?)"),
        (["pretrain", "output_dir=x", "seed=often"], "seed='often' is a str; it must be int"),
        (["generate", "model_path=x"], "prompts is empty"),
        (["generate", "model_path=x", "prompt=a", "generation.max_new_token=3"], "(did you mean 'max_new_tokens'?)"),
        (["generate", "model_path=absent/folder", "prompt=a"], "model_path='absent/folder' holds no model"),
        (
            ["quantize", "model_path=x", "output_dir=y", "method=gptq"],
            "'gptq' is unknown; choose from ['awq', 'rtn', 'int8']",
        ),
        (["quickstart", "pretrain.trainer.max_steps=1", "pretrain.dat.source=x"], "pretrain: unknown key 'dat'"),
        (["describe", "llama-3-9b"], "(did you mean 'llama-3-8b'?)"),
        (["describe", "llama-3-8b", "hidden_sise=3"], "(did you mean 'hidden_size'?)"),
        (["describe", "nobody/nothing"], "no config.json of that Hub id"),
        (["diff", "gpt2", "gpt3"], "(did you mean 'gpt2'?)"),
        (["diff", "gpt2", "gpt2", "hidden_sise=3"], "(did you mean 'hidden_size'?)"),
        (["families", "gemma_2"], "nearest known: gemma2"),
        (["pretrian"], "No such command 'pretrian'"),
    ],
)
def test_mistakes_are_one_line_with_exit_code_2(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and message in lines[0]
    assert "Traceback" not in err


def test_without_a_command_the_help_is_the_answer(capsys):
    _, out, err = run(capsys)
    assert "quickstart" in out + err and "error:" not in out + err


def test_describe(capsys):
    code, out, _ = run(capsys, "describe", "quickstart", "num_experts=16", "vocab_size=4096", "--json")
    facts = json.loads(out)
    assert code == 0
    code, out, _ = run(capsys, "describe", "quickstart", "vocab_size=4096")
    assert code == 0 and "2 of 8 + 1 shared" in out
    assert facts["parameters"]["total"] > 2_600_000


def test_describe_reads_native_configs(capsys, tmp_path):
    from transformers import MistralConfig

    keys = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8}
    MistralConfig(vocab_size=64, hidden_size=32, **keys).save_pretrained(tmp_path)
    code, out, _ = run(capsys, "describe", str(tmp_path), "--length", "64")
    assert code == 0 and "3 layers" in out and "sliding 8 attention" in out and "mistral" in out
    code, out, _ = run(capsys, "describe", str(tmp_path), "--json")
    assert code == 0 and json.loads(out)["native_families"][0] == "mistral"


def test_diff(capsys):
    code, out, _ = run(capsys, "diff", "gpt2", "gpt2", "num_key_value_heads=1", "--length", "100", "--json")
    facts = json.loads(out)
    assert code == 0 and facts["toggles"] == {"num_key_value_heads": [12, 1]} and facts["length"] == 100
    code, out, _ = run(capsys, "diff", "gpt2", "bloom-560m")
    assert code == 0 and "position_embedding_type" in out and "559,214,592" in out


def test_families(capsys):
    from hf_variants.convert import family_names
    from hf_variants.convert.left_out import LEFT_OUT

    code, out, _ = run(capsys, "families", "--json")
    facts = json.loads(out)
    assert code == 0 and [row["model_type"] for row in facts["families"]] == family_names()
    assert facts["left_out"] == LEFT_OUT and all(row["meaning"] for row in facts["families"])
    code, out, _ = run(capsys, "families")
    assert code == 0 and all(name in out for name in (*family_names(), *LEFT_OUT))
    code, out, _ = run(capsys, "families", "gemma2")
    assert code == 0 and "sandwich" in out and "use_bidirectional_attention" in out
    code, out, _ = run(capsys, "families", "mamba", "--json")
    assert code == 0 and json.loads(out) == {"model_type": "mamba", "converts": False, "reason": LEFT_OUT["mamba"]}


def test_a_folder_without_a_model_is_named(capsys, tmp_path):
    code, _, err = run(capsys, "generate", f"model_path={tmp_path}", "prompt=a")
    assert code == 2 and f"error: model_path='{tmp_path}' holds no model: the folder has no config.json" in err


def test_scripts_take_the_same_keys(tmp_path):
    command = [sys.executable, "recipes/generate.py", "recipes/generate.yaml", "model_path=absent"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "model_path='absent' holds no model: no such folder here" in done.stderr


def test_interruption_is_said(capsys, monkeypatch):
    from hf_variants.jobs import generation

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(generation, "generate", interrupted)
    code, _, err = run(capsys, "generate", "model_path=x", "prompt=a")
    assert code == 130 and "run the same command again to continue" in err


def test_an_interrupted_conversion_says_that_nothing_was_left(capsys, monkeypatch):
    import hf_variants.convert

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(hf_variants.convert, "convert_checkpoint", interrupted)
    code, _, err = run(capsys, "convert", "a", "b")
    assert code == 130 and "nothing was left behind" in err and "to continue" not in err


def test_a_run_that_stops_itself_is_one_line_with_exit_code_1(capsys, monkeypatch):
    from hf_variants.training import RunStopped

    def stop(spec, announce):
        raise RunStopped("step 7: the loss is nan; the last good checkpoint is out/checkpoint-5")

    monkeypatch.setattr("hf_variants.jobs.pretraining.pretrain", stop)
    code, _, err = run(capsys, "pretrain", "output_dir=out")
    assert code == 1 and err.startswith("error: step 7: the loss is nan") and err.count("\n") == 1


def test_quantize_takes_its_source_and_target_as_plain_words(monkeypatch, capsys):
    from hf_variants.jobs import quantization

    seen = []
    monkeypatch.setattr(quantization, "quantize", lambda spec, announce: seen.append(spec) or {"bytes": 1})
    code, _, _ = run(capsys, "quantize", "src", "64", "--method", "awq", "--group-size", "32", "--calibration", "text.txt")
    assert code == 0
    recipe = ["recipes/quantize.yaml", "model_path=src", "output_dir=64", "group_size=32", "calibration=text.txt"]
    assert (seen[0].model_path, seen[0].output_dir, seen[0].group_size, seen[0].calibration) == ("src", "64", 32, "text.txt")
    code, _, _ = run(capsys, "quantize", *[word.replace("=64", "='64'") for word in recipe])
    assert code == 0 and seen[1].model_path == "src" and seen[1].output_dir == "64"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bits", "3"], "bits=3 cannot be written"),
        (["--group-size", "48"], "group_size=48 is not supported"),
        ([], "needs text to calibrate on"),
        (["--producer", "autoawq"], "producer='autoawq' runs in an interpreter of its own, since AutoAWQ is archived"),
        (["--method", "rtn", "--max-bytes", "10"], "max_bytes needs errors measured on calibration tokens"),
        (["--method", "rtn", "--calibration", "a.txt"], "calibration mean nothing to method='rtn'"),
        (["--method", "int8", "--calibration-rows", "8", "--clip", "false"], "clip and calibration_rows mean nothing"),
        (["--method", "int8", "--calibration-length", "8"], "calibration_length=8 means nothing to method='int8' without"),
        (["--calibration-length", "8", "pairs.source=a.jsonl"], "calibration_length=8 is the length of rows of documents"),
        (["--calibration", "a.txt", "pairs.eval_fraction=0.5"], "pairs has ['eval_fraction'] but no pairs.source"),
        (["data.sequence_length=64", "pairs.source=a.jsonl"], "pairs.source='a.jsonl' beside calibration or data"),
        (["--to", "onnx"], "to='onnx' is unknown"),
    ],
)
def test_what_quantize_cannot_do_is_said_before_a_file_is_read(words, message, capsys):
    code, _, error = run(capsys, "quantize", "no-such-source", "no-such-target", *words)
    assert code == 2 and message in error


@pytest.mark.parametrize("script", sorted(Path("recipes").glob("*.py")), ids=lambda path: path.stem)
def test_scripts_do_not_hide_the_library_named_as_one_of_them(script, tmp_path):
    """Run as Python runs a script: its folder comes first, and evaluate.py lies in it."""
    before, after = script.read_text().split("    parser = ")
    probe = tmp_path / script.name
    (tmp_path / "evaluate.py").write_text("")
    head = before.split("from hf_variants")[0] + before[before.index("if __name__") :]
    probe.write_text(f'{head}    from importlib.util import find_spec\n\n    print(find_spec("evaluate").origin)\n')
    found = subprocess.run([sys.executable, str(probe)], capture_output=True, text=True, check=True).stdout
    assert found.strip().endswith("__init__.py") and str(tmp_path) not in found
