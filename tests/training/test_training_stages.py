"""Stages are done once; checkpoints that a kill left half-written are never resumed."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from hf_variants.training.checkpoints import last_good_checkpoint, why_broken
from hf_variants.training.stages import Stage, read_json, run_stage, stage_fingerprint, write_json

SETTINGS = {"trainer": {"max_steps": 600}, "seed": 0}


def test_a_finished_stage_is_skipped(tmp_path):
    lines, calls = [], []
    work = lambda: calls.append(1) or {"loss": 1.5}  # noqa: E731
    assert run_stage("fit", tmp_path / "a", SETTINGS, work, announce=lines.append) == {"loss": 1.5}
    assert run_stage("fit", tmp_path / "a", SETTINGS, work, announce=lines.append) == {"loss": 1.5}
    assert len(calls) == 1 and "already finished" in lines[-1]


def test_an_unfinished_stage_is_done_again(tmp_path):
    def fail():
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        run_stage("fit", tmp_path, SETTINGS, fail)
    assert Stage("fit", tmp_path, SETTINGS).finished_result() is None
    assert run_stage("fit", tmp_path, SETTINGS, lambda: {"loss": 2.0}) == {"loss": 2.0}


def test_changed_settings_are_said_and_not_overwritten(tmp_path):
    directory = tmp_path / "a"
    run_stage("fit", directory, SETTINGS, dict)
    (directory / "weights").write_text("precious")
    changed = {"trainer": {"max_steps": 800}, "seed": 0}
    with pytest.raises(ValueError, match=r"trainer.max_steps: 600 -> 800.*overwrite=true"):
        run_stage("fit", directory, changed, dict)
    assert (directory / "weights").read_text() == "precious"
    run_stage("fit", directory, changed, dict, overwrite=True)
    assert not (directory / "weights").exists()
    assert stage_fingerprint(directory) == Stage("fit", directory, changed).fingerprint


def test_a_refused_stage_does_not_bar_the_mended_one(tmp_path):
    def refuse():
        raise ValueError("group_size=24 is not supported")

    with pytest.raises(ValueError, match="group_size=24"):
        run_stage("fit", tmp_path / "a", SETTINGS, refuse)
    assert run_stage("fit", tmp_path / "a", {"seed": 1}, lambda: {"loss": 3.0}) == {"loss": 3.0}


def test_a_refused_stage_that_left_work_behind_keeps_its_claim(tmp_path):
    def refuse():
        (tmp_path / "weights").write_text("precious")
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        run_stage("fit", tmp_path, SETTINGS, refuse)
    with pytest.raises(ValueError, match="overwrite=true"):
        run_stage("fit", tmp_path, {"seed": 1}, dict)


def test_records_are_whole_or_absent(tmp_path):
    write_json(tmp_path / "a.json", {"a": 1})
    assert read_json(tmp_path / "a.json") == {"a": 1}
    (tmp_path / "a.json").write_text('{"a"')
    assert read_json(tmp_path / "a.json") is None and read_json(tmp_path / "b.json") is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def make_checkpoint(root, step):
    path = root / f"checkpoint-{step}"
    path.mkdir(parents=True)
    save_file({"w": torch.arange(1000.0)}, path / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"x": torch.zeros(100)}, path / name)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


BREAKS = {
    "no state": lambda path: (path / "trainer_state.json").unlink(),
    "state cut": lambda path: cut(path / "trainer_state.json"),
    "state of another step": lambda path: (path / "trainer_state.json").write_text('{"global_step": 3}'),
    "no weights": lambda path: (path / "model.safetensors").unlink(),
    "weights cut": lambda path: cut(path / "model.safetensors"),
    "weights empty": lambda path: (path / "model.safetensors").write_bytes(b""),
    "optimizer cut": lambda path: cut(path / "optimizer.pt"),
    "rng cut": lambda path: cut(path / "rng_state.pth"),
    "no scheduler": lambda path: (path / "scheduler.pt").unlink(),
    "a shard is missing": lambda path: (path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"w": "model-00002-of-00002.safetensors"}}'
    ),
}


@pytest.mark.parametrize("how", BREAKS)
def test_broken_checkpoints_are_moved_aside(tmp_path, how):
    good, bad = make_checkpoint(tmp_path, 9), make_checkpoint(tmp_path, 100)
    assert why_broken(bad) is None and last_good_checkpoint(tmp_path) == str(bad)
    BREAKS[how](bad)
    assert why_broken(bad) is not None
    assert last_good_checkpoint(tmp_path) == str(good)
    assert not bad.exists() and (tmp_path / "broken-checkpoint-100").is_dir()


def test_no_checkpoint(tmp_path):
    assert last_good_checkpoint(tmp_path / "absent") is None
    shutil.copytree(make_checkpoint(tmp_path, 5), tmp_path / "checkpoint-5.partial")
    shutil.rmtree(tmp_path / "checkpoint-5")
    assert last_good_checkpoint(tmp_path) is None
