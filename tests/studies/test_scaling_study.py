"""A scaling study from recipe to law: what runs share, what is made again, what is refused."""

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
from safetensors.torch import load_file

from hf_variants.scaling import fit_law, read_runs
from hf_variants.scaling.law_files import read_law
from hf_variants.studies import ScalingStudySpec, scaling_study
from hf_variants.studies.scaling_plan import drafts
from hf_variants.training import load_spec
from hf_variants.training.stages import read_json
from tests.studies.tiny_scaling import mapping, spec_of


def made(root, **keys):
    lines = []
    return scaling_study(spec_of(root, **keys), announce=lines.append), lines


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    return root, *made(root)


def weights_of(root):
    return {path: path.stat().st_mtime_ns for path in root.glob("out/runs/*/seed-*/*/model.safetensors")}


def test_the_table_is_what_the_runs_say(finished):
    root, result, lines = finished
    with (root / "out" / "runs.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["size"], row["tokens"], row["steps"]) for row in rows] == [
        ("small", "640", "5"), ("small", "1280", "10"), ("large", "640", "5"), ("large", "1280", "10")
    ]  # fmt: skip
    for row in rows:
        stage = read_json(root / "out" / "runs" / row["size"] / "seed-0" / f"{row['tokens']}-tokens" / "stage.json")
        assert (
            float(row["loss"]) == stage["result"]["eval_loss"]
            and int(row["total_parameters"]) == stage["result"]["parameters"]
        )
    assert len({row["parameters"] for row in rows}) == 2 and rows[0]["parameters"] == rows[0]["total_parameters"]
    assert [run.tokens for run in read_runs(result["table"])] == [640, 1280, 640, 1280]
    assert "law" not in result and any(
        "no law is fitted: a fit of 5 constants needs at least 6 runs" in line for line in lines
    )


@pytest.mark.slow
def test_a_longer_run_equals_one_from_nothing(finished, tmp_path):
    root, _, lines = finished
    assert sum("starts from step 4 of 10" in line for line in lines) == 2
    alone, said = made(tmp_path, sizes={"large": {"trainer.learning_rate": 5e-3}}, token_counts=[1280])
    assert not any("starts from" in line for line in said)
    shared, own = (load_file(next(at.glob("out/runs/large/seed-0/1280-tokens/model.safetensors"))) for at in (root, tmp_path))
    assert shared.keys() == own.keys() and all((shared[name] == own[name]).all() for name in shared)
    short = load_file(next(root.glob("out/runs/large/seed-0/640-tokens/model.safetensors")))
    assert any((shared[name] != short[name]).any() for name in shared)


@pytest.mark.slow
def test_again_makes_nothing_and_more_makes_only_that(finished):
    root, result, _ = finished
    before = weights_of(root)
    again, _ = made(root)
    assert again["runs"] == result["runs"] and weights_of(root) == before
    more, lines = made(root, token_counts=[640, 1280, 1920])
    after = weights_of(root)
    assert len(after) == 6 and {path: after[path] for path in before} == before
    assert any("starts from step 8 of 15" in line for line in lines)
    assert len(more["runs"]) == 6 and "no law is fitted: a fit needs at least 3 different parameters" in lines[-1]
    kept = {path.name for path in root.glob("out/runs/*/*/1280-tokens/checkpoint-*")}
    assert kept == {"checkpoint-8"}


def test_changed_settings_are_refused(finished):
    root, _, _ = finished
    before = weights_of(root)
    with pytest.raises(ValueError, match="runs have other settings.*learning_rate: 0.005 -> 0.004"):
        made(root, sizes={"large": {"trainer.learning_rate": 4e-3}})
    assert weights_of(root) == before


def test_a_law_is_fitted_and_drawn(tmp_path, monkeypatch):
    from hf_variants.scaling import ScalingLaw
    from hf_variants.studies import scaling_run

    law = ScalingLaw(5.0, 40.0, 1.5, 0.3, 0.35, "made up")
    fake = lambda run: {"status": "finished", "result": {"eval_loss": law.loss(run.total, run.tokens)}}  # noqa: E731
    monkeypatch.setattr(scaling_run, "make_all", lambda runs, announce: None)
    monkeypatch.setattr(scaling_run, "outcome_of", fake)
    monkeypatch.setattr(scaling_run, "refuse_changed", lambda runs, overwrite: None)
    sizes = {f"w{width}": {"model.intermediate_size": width} for width in (8, 64, 512)}
    result, _ = made(tmp_path, sizes=sizes, token_counts=[640, 5120, 40960], decay_share=0.5)
    assert result["law"]["law"]["beta"] == pytest.approx(0.35, abs=0.02)
    assert Path(result["plot"]).read_bytes().startswith(b"\x89PNG")
    assert json.loads(Path(result["law_file"]).read_text())["law"] == result["law"]["law"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"sizes": {}}, "sizes is empty"),
        ({"sizes": {"a/b": {"model.qk_norm": "head"}}}, "'a/b' is no name of a directory"),
        ({"sizes": {"a": {}, "b": {"trainer.learning_rate": 1e-3}}}, "'a' and 'b' have equally many parameters"),
        ({"sizes": {"a": {"model.hidden_sise": 8}}}, "size 'a'.*did you mean 'hidden_size'"),
        ({"sizes": {"a": {"trainer.max_steps": 8}}}, "sizes.a: trainer.max_steps is decided by token_counts"),
        ({"token_counts": [640, 640]}, "none of them twice"),
        ({"token_counts": [256, 1280]}, "256 tokens are 2 steps, of which"),
        ({"decay_share": 1.0}, "decay_share=1.0 must lie between 0 and 1"),
        ({"seeds": []}, "seeds=.. must be at least one"),
        ({"bootstrap": -1}, "bootstrap=-1"),
    ],
)
def test_what_is_refused_before_anything_runs(tmp_path, keys, said):
    with pytest.raises(ValueError, match=said):
        made(tmp_path, **keys)
    assert not list(tmp_path.glob("out/runs/*"))


def test_the_schedule_is_not_the_users(tmp_path):
    given = mapping(tmp_path)
    given["base"]["trainer"]["max_steps"] = 5
    with pytest.raises(ValueError, match="base.trainer.max_steps does not belong here"):
        made(tmp_path, base=given["base"])
    with pytest.raises(ValueError, match="base.objective='mlm'.*must be 'clm'"):
        made(tmp_path, base={**given["base"], "objective": "mlm"})


def test_the_shipped_recipe_is_valid():
    spec = load_spec(ScalingStudySpec, "recipes/scaling/study.yaml")
    assert [size.name for size, _ in drafts(spec)] == list(spec.sizes) and len(spec.sizes) * len(spec.token_counts) >= 9


def test_the_shipped_runs_give_the_shipped_law():
    """The table in the repository is fitted again; ten of the twelve runs lie as near as its page says."""
    shipped = read_runs("recipes/scaling/runs.csv")
    law = read_law("recipes/scaling/law.json")
    fitted = fit_law(shipped, bootstrap=0)
    for name in ("A", "B", "E", "alpha", "beta"):
        assert getattr(fitted.law, name) == pytest.approx(getattr(law.law, name), rel=0.02), name
    assert sorted(map(abs, fitted.residuals))[-3] < 0.065


@pytest.mark.slow
def test_killed_and_started_again(finished, tmp_path):
    root, result, _ = finished
    given = mapping(tmp_path)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
    command = [sys.executable, "-m", "hf_variants.cli", "scaling", "study", str(tmp_path / "recipe.yaml")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ})
    first = tmp_path / "out/runs/small/seed-0/1280-tokens"
    for _ in range(1200):
        if list(first.glob("checkpoint-*")) or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(tmp_path.glob("out/runs/large/*/*/model.safetensors"))
    again, _ = made(tmp_path)
    assert [run["loss"] for run in again["runs"]] == [run["loss"] for run in result["runs"]]
