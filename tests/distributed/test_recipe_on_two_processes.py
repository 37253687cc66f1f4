"""The pretraining recipe on two gloo processes: losses of one process, a resume to the same losses, the class that wraps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hf_variants.training import pretrain
from hf_variants.training.trainer import VariantsTrainer
from tests.training.runs import MODEL, losses_of, quiet, spec_of, write_text

ROOT = Path(__file__).parents[2]
# dropout draws differ per process; everything else is the same run
STILL = {**MODEL, "attention_dropout": 0.0}
KINDS = {
    "ddp": {"trainer": {}, "wrapper": "DistributedDataParallel", "parameter": "Parameter"},
    "fsdp": {
        "trainer": {
            "fsdp": True,
            "fsdp_config": {"version": 2},
        },
        "wrapper": "FSDPVariantsForCausalLM",
        "parameter": "DTensor",
    },
}


def launch(spec, folder, kind, last=None):
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.distributed.recipe", str(folder / "spec.json"), kind]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    words = [] if last is None else [str(last)]
    return subprocess.run(command + words, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    text = write_text(folder / "text.txt", documents=10)
    pretrain(spec_of(text, folder / "out", STILL), quiet)
    return text, folder / "out"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_resume(alone, tmp_path, kind):
    text, reference = alone
    expected = KINDS[kind]
    trainer = {"per_device_train_batch_size": 2, **expected["trainer"]}
    spec = spec_of(text, tmp_path / "out", STILL, trainer=trainer)
    stopped = launch(spec, tmp_path, kind, last=7)
    assert (tmp_path / "out" / "checkpoint-5").is_dir() and not (tmp_path / "out.json").exists(), stopped.stderr[-3000:]
    done = launch(spec, tmp_path, kind)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "continues from" in done.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["wrapper"], found["parameter"]) == (expected["wrapper"], expected["parameter"])
    assert found["result"]["steps"] == 10
    (ours, ours_held_out), (theirs, theirs_held_out) = losses_of(tmp_path / "out"), losses_of(reference)
    assert ours == pytest.approx(theirs, abs=1e-5)
    # Trainer deals rows out evenly, so that one may be counted twice in the mean
    assert ours_held_out == pytest.approx(theirs_held_out, rel=1e-4)
    weights, single = load_file(tmp_path / "out" / "model.safetensors"), load_file(reference / "model.safetensors")
    assert weights.keys() == single.keys()
    for name, tensor in single.items():
        assert (weights[name] - tensor).abs().max() < 1e-4, name


def test_sharding_that_would_be_copying_is_refused(monkeypatch):
    """Asked for in the recipe, or by `accelerate launch` through the environment."""
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)

    class Told:
        args = type("Arguments", (), {"fsdp": None})
        accelerator = type("Accelerator", (), {"distributed_type": "DistributedType.MULTI_CPU"})

    VariantsTrainer._refuse_silent_copies(Told)
    Told.args.fsdp = True
    with pytest.raises(ValueError, match="asks for sharded weights, but accelerate would run MULTI_CPU"):
        VariantsTrainer._refuse_silent_copies(Told)
    Told.args.fsdp = None
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="would run MULTI_CPU"):
        VariantsTrainer._refuse_silent_copies(Told)
