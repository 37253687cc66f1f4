"""Fine-tuning, context extension and pairs under transformers' own sharding, on two gloo processes: every run is interrupted,
goes on from its checkpoint, and has the losses of one process.
"""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hf_variants import jobs
from hf_variants.training import build_spec
from tests.distributed.tasks import launch
from tests.distributed.tiny_recipes import alone, extension, pairs, sharded_recipes
from tests.finetune import tiny as tunings
from tests.training.runs import quiet

CLASSES = {"classification": "FSDPVariantsForSequenceClassification", "seq2seq": "FSDPVariantsForSeq2SeqLM"}
NAMES = ("supervised", "preference", "classification", "continued", "extend", "seq2seq")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(recipes, what the first process found)."""
    folder = tmp_path_factory.mktemp("sharded")
    recipes = sharded_recipes(folder, {"fsdp_size": 2})
    tasks = {name: {"recipe": recipe, "spec": keys, "last": 3} for name, (recipe, keys) in recipes.items()}
    return recipes, launch(tasks, folder)[0]


def losses_of(directory):
    log = json.loads((Path(directory) / "training_log.json").read_text())
    return [line["loss"] for line in log if "loss" in line], [line["eval_loss"] for line in log if "eval_loss" in line]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_sharded_run_has_the_losses_of_one_process(runs, name):
    recipes, results = runs
    recipe, keys = recipes[name]
    assert "error" not in results[name], results[name]
    assert results[name]["class"] == results[name]["wrapper"] == CLASSES.get(name, "FSDPVariantsForCausalLM")
    assert results[name]["parameters"] == ["DTensor"]
    assert any("continues from" in line and line.endswith("checkpoint-2") for line in results[name]["lines"])
    single = alone(keys)
    getattr(jobs, recipe)(build_spec(getattr(jobs, jobs.RECIPES[recipe]), single), quiet)
    (ours, held_out), (theirs, held_out_alone) = losses_of(keys["output_dir"]), losses_of(single["output_dir"])
    assert len(ours) == 4 and ours == pytest.approx(theirs, abs=1e-5)
    # the run that was interrupted also measured where it went on; Trainer deals rows out evenly, so that one may count twice
    assert (held_out[0], held_out[-1]) == pytest.approx((held_out_alone[0], held_out_alone[-1]), rel=1e-2)
    weights, whole = (load_file(Path(spec["output_dir"]) / "model.safetensors") for spec in (keys, single))
    assert weights.keys() == whole.keys()
    for weight, tensor in whole.items():
        assert (weights[weight] - tensor).abs().max() < 1e-4, weight
    assert not (Path(keys["output_dir"]) / "start").exists()
    assert "distributed_config" not in json.loads((Path(keys["output_dir"]) / "config.json").read_text())


BAD = {
    "adapters": ({"method": "lora"}, {"fsdp_size": 2}, "method='lora' puts adapters on the weights"),
    "the head in pieces": ({}, {"tp_size": 2}, "task='supervised' is trained by TRL, which reads the head's weight itself"),
    "numbers before the optimizer": (
        {"task": "preference", "trainer": {"precompute_ref_log_probs": True}},
        {"fsdp_size": 2},
        "precompute_ref_log_probs=true runs the model before its optimizer",
    ),
    "another launch": ({}, {"fsdp_size": 2}, "needs 2 processes, and this launch has 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_fine_tuning_cannot_split_is_refused(tmp_path, name):
    changes, section, message = BAD[name]
    base = tunings.write_model(tmp_path / "base", num_key_value_heads=2)
    keys = {"model_path": base, "output_dir": str(tmp_path / "out"), "data": {"source": "absent.jsonl"}, "samples": 3}
    with pytest.raises(ValueError, match=message):
        jobs.finetune(build_spec(jobs.FinetuneSpec, {**keys, **changes, "distributed": section}), quiet)


@pytest.mark.parametrize(
    "section, message",
    {
        "a misspelt key": ({"fsdp_sise": 2}, "unknown key 'distributed.fsdp_sise' .did you mean 'fsdp_size'"),
        "another launch": ({"fsdp_size": 2}, "needs 2 processes, and this launch has 1"),
    }.values(),
)
@pytest.mark.parametrize("recipe", ["extend", "seq2seq"])
def test_mistakes_of_the_section_are_found_before_any_work(tmp_path, recipe, section, message):
    keys = {"extend": extension, "seq2seq": lambda _, folder, **more: pairs(folder, **more)}[recipe]
    _, mapping = keys("absent", tmp_path, distributed=section)
    with pytest.raises(ValueError, match=message):
        getattr(jobs, recipe)(build_spec(getattr(jobs, jobs.RECIPES[recipe]), mapping), quiet)
