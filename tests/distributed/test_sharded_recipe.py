"""The pretraining recipe under transformers' own sharding, on two gloo processes: losses of one process, and a run that was
interrupted ends in the bits of one that was not.
"""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from hf_variants.training import pretrain
from hf_variants.training.checkpoints import why_broken
from hf_variants.training.sharding import OPTIMIZER_FOLDER, shards_of
from tests.distributed.tasks import launch
from tests.training.runs import MODEL, losses_of, quiet, spec_of, write_text

# dropout draws differ per process; two key-value heads can stand on two processes
STILL = {**MODEL, "attention_dropout": 0.0, "num_key_value_heads": 2}
KINDS = {
    "fsdp": ({"fsdp_size": 2}, "FSDPVariantsForCausalLM", ["DTensor"]),
    "experts": ({"fsdp_size": 2, "ep_size": 2}, "FSDPVariantsForCausalLM", ["DTensor"]),
    "tensor": ({"tp_size": 2}, "VariantsForCausalLM", ["DTensor", "Parameter"]),
    "tensor_experts": ({"tp_size": 2, "ep_size": 2}, "VariantsForCausalLM", ["DTensor", "Parameter"]),
}


def sharded_spec(text, folder, section, **keys):
    """Four rows per step, as the run of one process has."""
    rows = 4 if "tp_size" in section else 2
    return spec_of(text, folder, STILL, trainer={"per_device_train_batch_size": rows}, distributed=section, **keys)


def tasks_of(text, folder):
    """{name: task}: every kind whole and interrupted, and one that goes on under another split."""
    tasks = {}
    for name, (section, *_) in KINDS.items():
        tensor = "tp_size" in section
        tasks[name] = {"spec": sharded_spec(text, folder / name, section).to_dict(), "tensor": tensor}
        cut = sharded_spec(text, folder / f"{name}_cut", section).to_dict()
        tasks[f"{name}_cut"] = {"spec": cut, "last": 7, "tensor": tensor}
    first, then = (sharded_spec(text, folder / "moved", KINDS[name][0]).to_dict() for name in ("fsdp", "experts"))
    moved = {"moved": {"spec": first, "then": then, "last": 7}}
    # those that need accelerate to believe in accelerators come last
    return {**{name: tasks[name] for name in tasks if not name.startswith("tensor")}, **moved, **tasks}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(folder, text, what the processes found)."""
    folder = tmp_path_factory.mktemp("sharded")
    text = write_text(folder / "text.txt", documents=10)
    return folder, text, launch(tasks_of(text, folder), folder)[0]


@pytest.fixture(scope="module")
def alone(runs):
    folder, text, _ = runs
    pretrain(spec_of(text, folder / "alone", STILL), quiet)
    return folder / "alone"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_weights_are_those_of_one_process(runs, alone, kind):
    folder, _, results = runs
    assert "error" not in results[kind], results[kind]
    assert (results[kind]["class"], results[kind]["parameters"]) == KINDS[kind][1:]
    (ours, held_out), (theirs, held_out_alone) = losses_of(folder / kind), losses_of(alone)
    assert len(ours) == 10 and ours == pytest.approx(theirs, abs=1e-5)
    # Trainer deals rows out evenly, so that one may be counted twice in the mean
    assert held_out == pytest.approx(held_out_alone, rel=1e-4)
    weights, single = load_file(folder / kind / "model.safetensors"), load_file(alone / "model.safetensors")
    assert weights.keys() == single.keys()
    for name, tensor in single.items():
        assert (weights[name] - tensor).abs().max() < 1e-4, name
    assert not (folder / kind / "start").exists()
    assert "distributed_config" not in json.loads((folder / kind / "config.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_ends_in_equal_bits(runs, kind):
    folder, _, results = runs
    cut = results[f"{kind}_cut"]
    assert "error" not in cut, cut
    assert any("continues from" in line and line.endswith("checkpoint-5") for line in cut["lines"])
    assert losses_of(folder / f"{kind}_cut") == losses_of(folder / kind)
    whole, resumed = (load_file(folder / name / "model.safetensors") for name in (kind, f"{kind}_cut"))
    assert any("e_score_correction_bias" in name and tensor.any() for name, tensor in whole.items())
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.slow
def test_a_run_goes_on_under_another_split(runs):
    folder, _, results = runs
    assert "error" not in results["moved"], results["moved"]
    assert any("continues from" in line for line in results["moved"]["lines"])
    assert losses_of(folder / "moved")[0] == pytest.approx(losses_of(folder / "fsdp")[0], abs=1e-5)


@pytest.mark.slow
def test_damaged_shards_are_seen(runs, tmp_path):
    folder, _, _ = runs
    source = folder / "experts" / "checkpoint-10"
    assert why_broken(source) is None and len(shards_of(source)) == 2
    copy = shutil.copytree(source, tmp_path / "checkpoint-10")
    shard = shards_of(copy)[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-8])
    assert why_broken(copy) == f"{shard.name} is cut short"
    shard.unlink()
    assert "1 of 2 shards" in why_broken(copy)
    shard.write_bytes(content)
    (copy / OPTIMIZER_FOLDER / ".metadata").unlink()
    assert why_broken(copy) == f"{OPTIMIZER_FOLDER}/.metadata is missing"


@pytest.mark.slow
def test_a_whole_run_does_not_continue_a_sharded_one(runs):
    folder, text, _ = runs
    with pytest.raises(ValueError, match="distributed: True -> None"):
        pretrain(spec_of(text, folder / "fsdp", STILL, allow_changes=True), quiet)


EXPERT_KEYS = ("num_experts", "moe_intermediate_size", "mlp_layer_types", "router_balance")
BAD = {
    "a misspelt key": ({"fsdp_sise": 2}, {}, "unknown key 'distributed.fsdp_sise' .did you mean 'fsdp_size'"),
    "a wrong type": ({"fsdp_size": "two"}, {}, "distributed.fsdp_size='two' is a str; it must be int or null"),
    "a plan": ({"tp_plan": "auto"}, {}, "distributed.tp_plan='auto' does not belong here: the model brings its plans"),
    "pipelines": ({"pp_size": 2}, {}, "distributed.pp_size=2 .* forward and generation alone"),
    "one process": ({"fsdp_size": 1}, {}, "splits nothing; give fsdp_size"),
    "sizes that do not fit": ({"fsdp_size": 2, "ep_size": 3}, {}, "`ep_size` must divide"),
    "another launch": ({"fsdp_size": 2}, {}, "needs 2 processes, and this launch has 1: torchrun --nproc_per_node 2"),
    "two engines": ({"fsdp_size": 2}, {"trainer": {"fsdp": True}}, "trainer.fsdp=True and distributed=.* both shard"),
    "the best model": ({"fsdp_size": 2}, {"trainer": {"load_best_model_at_end": True}}, "reads whole weights back"),
    "Muon": ({"fsdp_size": 2}, {"optimizer": "muon"}, "optimizer='muon' needs whole matrices"),
    "uneven experts": (
        {"fsdp_size": 3, "ep_size": 3},
        {},
        r"ep_size=3 does not divide model.num_experts=4; choose from \[1, 2, 4\]",
    ),
    "no experts": (
        {"fsdp_size": 2, "ep_size": 2},
        {"model": {key: value for key, value in STILL.items() if key not in EXPERT_KEYS}},
        "splits experts, and the model has none",
    ),
    "a key-value head": ({"tp_size": 4}, {}, "does not divide num_key_value_heads=2"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_found_before_any_work(tmp_path, name):
    section, keys, message = BAD[name]
    text = write_text(tmp_path / "text.txt", documents=2)
    spec = spec_of(text, tmp_path / "out", **{"model": STILL, **keys}, distributed=section)
    with pytest.raises(ValueError, match=message):
        pretrain(spec, quiet)
    assert not (tmp_path / "out").exists()
