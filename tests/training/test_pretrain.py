"""Pretraining end to end on tiny models: it learns, resumes after a kill to equal weights, is skipped when finished."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_variants.training import TrainingSpec, build_spec, pretrain
from tests.training import runs

MODEL = {**runs.MODEL, "attention_dropout": 0.0, "qk_norm": "head", "num_shared_experts": 1, "router_z_loss_coef": 0.001}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return runs.write_text(tmp_path_factory.mktemp("text") / "text.txt")


def spec_of(text, output_dir, **trainer):
    steps = {"max_steps": 30, "logging_steps": 10, "eval_steps": 15, "save_steps": 10, "warmup_steps": 3}
    return runs.spec_of(text, output_dir, MODEL, trainer={**steps, **trainer})


def weights(directory):
    return load_file(directory / "model.safetensors")


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "out"
    return directory, pretrain(spec_of(text, directory))


def test_it_learns_beyond_the_unigram_baseline(finished):
    directory, result = finished
    assert result["eval_perplexity"] < 0.5 * result["unigram_perplexity"]
    assert result["steps"] == 30 and result["tokens_per_second"] > 0
    assert result["eval_perplexity"] == pytest.approx(math.exp(result["eval_loss"]))
    assert not list(directory.glob("*.bin"))


def test_result_loads_with_auto_classes(finished):
    directory, result = finished
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    assert model.config.vocab_size == len(tokenizer) and model.config.eos_token_id == tokenizer.eos_token_id
    assert model.num_parameters() == result["parameters"]
    prompt = tokenizer("verse", return_tensors="pt")
    assert model.generate(**prompt, max_new_tokens=3, do_sample=False).shape[1] > prompt["input_ids"].shape[1]


def test_the_card_tells_of_the_run(finished, text):
    directory, result = finished
    card = (directory / "README.md").read_text()
    section = card[card.index("run begin") : card.index("run end")]
    stats = json.loads(next(directory.glob("data/train-*/packing.json")).read_text())["stats"]
    told = {
        **{"started from": "new weights", "data": "`text.txt`", "training documents": f"{stats['documents']:,}"},
        **{"tokens of an epoch": f"{stats['tokens']:,}", "tokens trained on, padding included": f"{30 * 4 * 32:,}"},
        **{"learning rate": "0.01, cosine, warmup 3", "objective": "clm", "packing": "concatenate", "seed": "0"},
        **{"loss": f"{result['eval_loss']:,.4g}", "perplexity": f"{result['eval_perplexity']:,.4g}"},
        **{"perplexity of the unigram baseline": f"{result['unigram_perplexity']:,.4g}", "rows per optimizer step": "4"},
    }
    for name, value in told.items():
        assert f"| {name} | {value} |" in section, name
    assert "![Loss over optimizer steps](loss.svg)" in section and (directory / "loss.svg").read_bytes().lstrip().startswith(
        b"<"
    )
    assert str(directory.parent) not in section and "hf_variants: begin" in card


def test_log_shows_losses_and_expert_loads_apart(finished):
    log = json.loads((finished[0] / "training_log.json").read_text())
    line = next(line for line in log if "loss" in line and line["step"] == 20)
    assert 0 <= line["expert_load_layer_1_min"] <= 1 <= line["expert_load_layer_1_max"] <= 4
    assert line["z_loss"] > 0 and line["tokens_per_second"] > 0
    assert "expert_load_layer_0_min" not in line
    evaluated = [line for line in log if "eval_loss" in line]
    assert [line["step"] for line in evaluated][:2] == [15, 30]
    assert all(line["eval_perplexity"] == pytest.approx(math.exp(line["eval_loss"])) for line in evaluated)


def test_finished_run_is_skipped_and_changed_settings_are_refused(finished, text):
    directory, result = finished
    before, lines = (directory / "model.safetensors").stat().st_mtime_ns, []
    assert pretrain(spec_of(text, directory), announce=lines.append) == result
    assert lines == [f"pretrain: already finished in {directory}, skipped"]
    with pytest.raises(ValueError, match="trainer.max_steps: 30 -> 40"):
        pretrain(spec_of(text, directory, max_steps=40))
    assert (directory / "model.safetensors").stat().st_mtime_ns == before


def test_a_refused_run_leaves_nothing_behind(text, tmp_path):
    directory = tmp_path / "out"
    long = spec_of(text, directory)
    long.data.sequence_length = 65
    with pytest.raises(ValueError, match="data.sequence_length=65 exceeds max_position_embeddings=64"):
        pretrain(long)
    with pytest.raises(ValueError, match="trainer: .*stepss"):
        pretrain(spec_of(text, directory, save_strategy="stepss"))
    assert not directory.exists()


@pytest.mark.slow
def test_two_processes_train_one_model_from_nothing(finished, text, tmp_path):
    """The shipped script as torchrun starts it, on a machine without a GPU and without the word `use_cpu`."""
    words = [f"data.source={text}", f"output_dir={tmp_path / 'out'}", "model=" + json.dumps(MODEL), "tokenizer.vocab_size=300"]
    words += ["data.sequence_length=32", "data.eval_fraction=0.2", "trainer.max_steps=4", "trainer.save_steps=2"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "recipes/pretrain.py"]
    done = subprocess.run(command + words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "on 2 process(es)" in done.stdout and done.stdout.count("tokenizer: training") == 1
    stage = json.loads((tmp_path / "out" / "stage.json").read_text())
    assert stage["status"] == "finished" and stage["result"]["steps"] == 4
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == weights(finished[0]).keys()


def test_resume_from_a_broken_last_checkpoint_gives_equal_weights(finished, text, tmp_path):
    directory, result = finished
    partial = tmp_path / "out"
    with pytest.raises(_Stop):
        pretrain(spec_of(text, partial), announce=_stop_at("unreached", partial, 20))
    lines = []
    newest = partial / "checkpoint-20"
    (newest / "optimizer.pt").write_bytes((newest / "optimizer.pt").read_bytes()[:1000])
    again = pretrain(spec_of(text, partial), announce=lines.append)
    assert f"training: continues from {partial / 'checkpoint-10'}" in lines
    assert (partial / "broken-checkpoint-20").is_dir()
    assert again["eval_loss"] == pytest.approx(result["eval_loss"], abs=1e-6)
    for name, tensor in weights(directory).items():
        torch.testing.assert_close(weights(partial)[name], tensor, rtol=0, atol=1e-6)


class _Stop(Exception):
    pass


def _stop_at(_, directory, step):
    """An `announce` under which training stops, as by a kill, once checkpoint `step` is written."""
    from transformers.trainer_callback import DefaultFlowCallback

    original = DefaultFlowCallback.on_step_end

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step > step:
            DefaultFlowCallback.on_step_end = original
            raise _Stop
        return original(self, args, state, control, **kwargs)

    DefaultFlowCallback.on_step_end = on_step_end
    return lambda line: None


def test_mistakes_are_found_before_any_work(text, tmp_path):
    cases = [
        ({"model": {**MODEL, "hidden_sizes": 3}}, "did you mean 'hidden_size'"),
        ({"model": "quickstrt"}, "did you mean 'quickstart'"),
        ({"model": None}, "give either model"),
        ({"trainer": {"max_stps": 1}}, "did you mean 'max_steps'"),
    ]
    for change, message in cases:
        mapping = {"output_dir": str(tmp_path / "out"), "data": {"source": text}, "model": MODEL, **change}
        with pytest.raises(ValueError, match=message):
            pretrain(build_spec(TrainingSpec, mapping))
        assert not (tmp_path / "out").exists()


def test_rows_beyond_the_context_are_refused(text, tmp_path):
    spec = spec_of(text, tmp_path / "out")
    spec.data.sequence_length = 128
    with pytest.raises(ValueError, match="sequence_length=128 exceeds max_position_embeddings=64"):
        pretrain(spec)


def test_weight_decay_groups(finished):
    from hf_variants.training.trainer import decay_parameter_names

    model = AutoModelForCausalLM.from_pretrained(finished[0])
    decayed = set(decay_parameter_names(model))
    kept = {name for name, _ in model.named_parameters()} - decayed
    assert kept == {name for name, _ in model.named_parameters() if "norm" in name or "embed_tokens" in name}
    assert "model.layers.1.mlp.experts.gate_up_proj" in decayed and "model.layers.1.mlp.gate.weight" in decayed


@pytest.mark.slow
def test_kill_9_and_rerun_gives_equal_weights(finished, text, tmp_path):
    reference, result = finished
    recipe = tmp_path / "recipe.json"  # JSON is YAML
    recipe.write_text(json.dumps(spec_of(text, tmp_path / "out").to_dict()))
    command = [sys.executable, "-m", "hf_variants.cli", "pretrain", "--config", str(recipe)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = 0
    for step in (10, 20):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (tmp_path / "out" / f"checkpoint-{step}").is_dir():
            time.sleep(0.002)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed > 0
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "held-out perplexity" in done.stdout or "already finished" in done.stdout
    record = json.loads((tmp_path / "out" / "stage.json").read_text())
    assert record["status"] == "finished" and record["result"]["steps"] == 30
    assert record["result"]["eval_loss"] == pytest.approx(result["eval_loss"], abs=1e-5)
    for name, tensor in weights(reference).items():
        torch.testing.assert_close(weights(tmp_path / "out")[name], tensor, rtol=0, atol=1e-5)
