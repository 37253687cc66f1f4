"""The whole job at smoke size: every stage leaves a checkpoint that loads, a report, and is not done twice."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_variants.context.extend_spec import COMPARED
from hf_variants.jobs import QuickstartSpec, quickstart
from hf_variants.training import build_spec

MODEL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 32,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
    "qk_norm": "head",
    "mlp_layer_types": ["sparse", "sparse"],
    "num_experts": 4,
    "moe_intermediate_size": 32,
    "num_shared_experts": 1,
    "router_balance": "bias",
    "tie_word_embeddings": True,
}
# What a run is killed at, as soon as it appears.
WATCHED = (
    "pretrained/checkpoint-10",
    "extended/checkpoint-2",
    "awq/config.json",
)
FORMATS = ("pretrained", "extended", "bf16", "awq", "rtn")


def smoke(root):
    """Mapping of a quickstart of seconds, over the shipped recipes."""
    words = random.Random(0)
    names = ["light", "sea", "day", "night", "earth", "man"]
    documents = []
    for number in range(24):
        lines = [
            f"And the {words.choice(names)} said unto the {words.choice(names)}, Let there be {words.choice(names)}."
            for _ in range(20)
        ]
        documents.append(f"Book {number}\n" + "\n".join(lines))
    root.mkdir(parents=True, exist_ok=True)
    (root / "text.txt").write_text("\n\n".join(documents))
    data = {"source": str(root / "text.txt"), "eval_fraction": 0.2}
    trainer = {"use_cpu": True, "disable_tqdm": True, "logging_steps": 5, "warmup_steps": 2}
    return {
        "output": str(root / "run"),
        "pretrain": {
            "config": "recipes/pretrain.yaml",
            "data": {**data, "sequence_length": 32},
            "tokenizer": {"vocab_size": 300},
            "model": MODEL,
            "trainer": {**trainer, "max_steps": 40, "save_steps": 10, "eval_steps": 20, "learning_rate": 1e-2},
        },
        "evaluate": {"config": "recipes/evaluate.yaml", "data": data, "max_tokens": 1000},
        "extend": {
            "config": "recipes/extend.yaml",
            "data": {**data, "sequence_length": 128},
            "layers": "full_attention",
            "max_tokens": 512,
            "trainer": {**trainer, "max_steps": 4, "save_steps": 2, "eval_steps": 4},
        },
        "quantize": {
            "config": "recipes/quantize.yaml",
            "data": {**data, "sequence_length": 64},
            "calibration_rows": 8,
            "group_size": 32,
        },
        "generate": {"config": "recipes/generate.yaml", "prompts": ["And the"], "generation": {"max_new_tokens": 8}},
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("quickstart")
    mapping = smoke(root)
    return root, mapping, quickstart(build_spec(QuickstartSpec, mapping))


@pytest.mark.slow
def test_numbers_of_every_stage(finished):
    _, _, results = finished
    trained, extended = results["pretrain"], results["extend"]
    assert trained["eval_perplexity"] < 0.5 * trained["unigram_perplexity"]
    assert extended["context_before"] == 32 and extended["context_after"] == 128
    assert set(extended["before"]) == set(COMPARED) == set(extended["passkey_before"]) and extended["verification"]["ok"]
    bf16, rtn, awq = results["comparison"]
    assert awq["bytes"] < bf16["bytes"] and rtn["bytes"] == pytest.approx(awq["bytes"], rel=0.05)
    assert all(record["tokens_per_second"] > 0 for record in results["comparison"])
    assert rtn["perplexity"] < 1.5 * bf16["perplexity"] and awq["perplexity"] < 1.5 * bf16["perplexity"]
    assert len(results["samples"]) == len(FORMATS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_every_directory_loads(finished, name):
    directory = finished[0] / "run" / name
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    ids = tokenizer("And the", return_tensors="pt")
    assert model.generate(**ids, max_new_tokens=4, do_sample=False).shape[1] > ids["input_ids"].shape[1]


@pytest.mark.slow
def test_report_is_self_contained(finished):
    page = (finished[0] / "run" / "report.html").read_text()
    assert page.count("data:image/") >= 4
    assert "http://" not in page.replace("http://www.w3.org", "") and "<script src" not in page and "<link" not in page
    for word in ("unigram", "yarn", "AWQ 4-bit", "RTN 4-bit", "bf16", "And the"):
        assert word in page


@pytest.mark.slow
def test_nothing_is_done_twice(finished):
    _, mapping, results = finished
    lines = []
    again = quickstart(build_spec(QuickstartSpec, mapping), announce=lines.append)
    assert again == results
    assert sum("already finished" in line for line in lines) == 8
    assert not any(line.startswith("training:") for line in lines)


@pytest.mark.slow
def test_kill_anywhere_and_rerun_gives_the_same_result(finished, tmp_path):
    _, _, results = finished
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(smoke(tmp_path)))
    command = [sys.executable, "-m", "hf_variants.cli", "quickstart", "--config", str(recipe)]
    environment, run = {**os.environ, "OMP_NUM_THREADS": "1"}, tmp_path / "run"
    for name in (*WATCHED, None):
        with (tmp_path / "errors.txt").open("w+") as errors:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
            while process.poll() is None and not (name and (run / name).exists()):
                time.sleep(0.005)
            process.kill()
            code = process.wait()
            errors.seek(0)
            assert code == (-signal.SIGKILL if name else 0), f"{name}: {errors.read()[-2000:]}"
    lines = []
    again = quickstart(build_spec(QuickstartSpec, smoke(tmp_path)), announce=lines.append)
    assert sum("already finished" in line for line in lines) == 8
    for stage in ("pretrain", "extend"):
        first, second = results[stage], again[stage]
        assert first.keys() == second.keys()
    assert again["pretrain"]["eval_loss"] == pytest.approx(results["pretrain"]["eval_loss"], abs=1e-4)
    for first, second in zip(results["comparison"], again["comparison"], strict=True):
        assert second["perplexity"] == pytest.approx(first["perplexity"], rel=1e-3)
        assert second["bytes"] == pytest.approx(first["bytes"], rel=1e-2)
