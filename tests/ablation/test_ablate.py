"""An ablation from recipe to report; interrupted, extended, changed, diverging, and by a launcher."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from hf_variants.ablation import ablate
from tests.ablation.tiny import mapping, spec_of


def made(root, lines=None, **keys):
    return ablate(spec_of(root, **keys), announce=[].append if lines is None else lines.append)


def files_of(root):
    return {path: path.stat().st_mtime_ns for path in root.glob("out/runs/*/seed-*/model.safetensors")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("ablation")
    return root, made(root)


def test_the_table_is_what_the_runs_say(finished):
    root, results = finished
    base, other = results["rows"]
    losses = {(run["variant"], run["seed"]): run["eval_loss"] for run in results["runs"]}
    assert len(losses) == 4 and all(run["status"] == "finished" and run["steps"] == 6 for run in results["runs"])
    for row in results["rows"]:
        own = [losses[row["variant"], seed] for seed in (0, 1)]
        assert row["mean_loss"] == pytest.approx(sum(own) / 2) and row["seeds"] == 2 and row["half_width"] > 0
    differences = [losses["MQA", seed] - losses["base", seed] for seed in (0, 1)]
    assert other["difference"] == pytest.approx(sum(differences) / 2) and other["against"] == "base"
    assert other["verdict"] in ("better", "worse", "within noise") and base["verdict"] == ""
    assert losses["base", 0] != losses["base", 1]
    assert results["curves"]["MQA"][-1][0] == 6 and results["comparisons"] == 1


def test_files(finished):
    root, results = finished
    out = root / "out"
    saved = json.loads((out / "ablation.json").read_text())
    assert saved["rows"][1]["mean_loss"] == results["rows"][1]["mean_loss"]
    with (out / "ablation.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["variant"] for row in rows] == ["base", "MQA"]
    assert float(rows[1]["difference"]) == pytest.approx(results["rows"][1]["difference"])
    assert json.loads(rows[1]["changes"]) == {"model.num_key_value_heads": 1}
    page = (out / "report.html").read_text()
    assert page.count("data:image/png") == 2 and "MQA" in page and "Holm" in page
    shown = [results["rows"][1][name] for name in ("mean_loss", "difference")] + [results["runs"][0]["eval_loss"]]
    assert all(f">{value:.4f}<" in page for value in shown)
    for name in ("differences", "held_out_loss"):
        assert (out / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not list(out.glob("runs/*/*/checkpoint-*")) and len(files_of(root)) == 4


@pytest.mark.slow
def test_the_load_of_experts_is_told(tmp_path):
    """Balancing is not seen in the loss alone: the table says how evenly the experts were used when training ended."""
    experts, lines = {"num_experts": 4, "moe_intermediate_size": 16, "router_balance": "bias"}, []
    keys = {"variants": {"experts": {"model": experts}}, "base": {"trainer": {"max_steps": 2, "logging_steps": 1}}}
    dense, sparse = made(tmp_path, lines, **keys)["rows"]
    logs = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("out/runs/experts/*/training_log.json"))]
    ends = [[line for line in log if "expert_load_max" in line][-1] for log in logs]
    assert len(ends) == 2 and dense["expert_load_max"] is None
    for name in ("expert_load_min", "expert_load_max"):
        assert sparse[name] == pytest.approx(sum(line[name] for line in ends) / 2)
    told = f"expert load {sparse['expert_load_min']:.2f} to {sparse['expert_load_max']:.2f} (1 is even)"
    assert sum(told in line for line in lines) == 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Load of the experts" in page and told in page


def test_again_makes_nothing_and_another_seed_makes_only_its_own(finished):
    root, results = finished
    before = files_of(root)
    again = made(root)
    assert files_of(root) == before and again["rows"] == results["rows"]
    more = made(root, seeds=[0, 1, 2])
    assert more["rows"][1]["seeds"] == 3 and len(files_of(root)) == 6
    assert {path: stamp for path, stamp in files_of(root).items() if path in before} == before


def test_changed_settings_are_refused_before_anything_runs(finished):
    root, _ = finished
    before = files_of(root)
    with pytest.raises(ValueError, match=r"runs have other settings.*trainer.learning_rate: 0.01 -> 0.02"):
        made(root, base={"trainer": {"learning_rate": 0.02}}, variants={"GQA": {"model.num_key_value_heads": 2}})
    with pytest.raises(ValueError, match="rows_per_step: 4 -> 2"):
        made(root, base={"trainer": {"per_device_train_batch_size": 2}}, collect_only=True)
    assert files_of(root) == before


def test_nothing_is_started_when_only_collecting(tmp_path):
    lines = []
    results = made(tmp_path, lines, collect_only=True)
    assert all(run["status"] == "waiting" for run in results["runs"]) and not files_of(tmp_path)
    assert any("4 of 4 runs are not finished" in line for line in lines)
    assert all(row["mean_loss"] is None for row in results["rows"])


@pytest.mark.slow
def test_a_run_that_diverges_is_a_result(tmp_path):
    variants = {"wild": {"trainer.learning_rate": 1e30, "trainer.max_grad_norm": 1e30, "trainer.warmup_steps": 0}}
    results = made(tmp_path, variants=variants, seeds=[0])
    base, wild = results["rows"]
    assert base["seeds"] == 1 and base["diverged"] == 0
    assert wild["seeds"] == 0 and wild["diverged"] == 1 and wild["verdict"] == "diverged"
    assert "step" in next(run["reason"] for run in results["runs"] if run["variant"] == "wild")
    lines = []
    made(tmp_path, lines, variants=variants, seeds=[0])
    assert any("wild, seed 0: diverged before, not tried again" in line for line in lines)


@pytest.mark.slow
def test_kill_anywhere_and_rerun_gives_the_same_table(finished, tmp_path):
    _, results = finished
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(mapping(tmp_path)))
    command = [sys.executable, "-m", "hf_variants.cli", "ablate", str(recipe)]
    for name in ("runs/base/seed-0/checkpoint-3", "runs/MQA/seed-0/model.safetensors", None):
        process = subprocess.Popen(command, env={**os.environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (name and (tmp_path / "out" / name).exists()):
            time.sleep(0.005)
        process.kill()
        assert process.wait() == (-signal.SIGKILL if name else 0)
    again = json.loads((tmp_path / "out" / "ablation.json").read_text())
    for first, second in zip(results["rows"], again["rows"], strict=True):
        assert second["mean_loss"] == pytest.approx(first["mean_loss"], abs=1e-6)


@pytest.mark.slow
def test_a_launcher_makes_the_same_runs(finished, tmp_path):
    _, results = finished
    lines = []
    launcher = "{python} -m hf_variants.cli pretrain {recipe}"
    again = made(tmp_path, lines, launcher=launcher, parallel=2, seeds=[1])
    assert sum("hf_variants.cli pretrain" in line for line in lines) == 2
    before = {run["variant"]: run["eval_loss"] for run in results["runs"] if run["seed"] == 1}
    for row in again["rows"]:
        assert row["mean_loss"] == pytest.approx(before[row["variant"]], abs=1e-6)
    assert Path(tmp_path / "out" / "runs" / "MQA" / "seed-1.log").stat().st_size > 0
    lines.clear()
    with pytest.raises(ValueError, match="rows_per_step"):
        made(tmp_path, launcher=launcher, seeds=[1], base={"trainer": {"per_device_train_batch_size": 2}})
    made(tmp_path, lines, launcher=launcher, seeds=[1])
    assert not any("hf_variants.cli pretrain" in line for line in lines)


@pytest.mark.slow
def test_a_launcher_that_fails_is_told(tmp_path):
    lines = []
    results = made(tmp_path, lines, launcher="false {recipe}", seeds=[0])
    assert all(run["status"] == "waiting" for run in results["runs"])
    assert sum("ended with code 1" in line for line in lines) == 2
