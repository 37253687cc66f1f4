"""Perplexity beyond the trained length: what is measured, what refuses, and the recipe from training to report."""

import csv
import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from hf_variants.context.rope_swap import scaled_model
from hf_variants.studies import ExtrapolateSpec, extrapolate
from hf_variants.studies.extrapolation import check_extrapolation
from hf_variants.studies.extrapolation_measure import losses_by_position, measure_lengths, readings_of, row_length
from hf_variants.studies.extrapolation_results import cell, collect, in_words, write_results
from hf_variants.training import build_spec
from tests.ablation.tiny import mapping as ablation_mapping
from tests.variants import build, draw_ids, tiny

LENGTHS = [8, 12, 24]
SCHEMES = {name: {"model.position_embedding_type": name} for name in ("alibi", "learned")}


def model_of(**keys):
    return build(tiny("gqa", max_position_embeddings=8, **keys))


def spec_of(root, **keys):
    given = ablation_mapping(root)
    base, over = given["base"], keys.pop("base", {})
    base = {name: {**value, **over.get(name, {})} for name, value in base.items()}
    base["data"]["sequence_length"] = base["model"]["max_position_embeddings"] = 32
    base["model"].update(over.get("model", {}))
    shared = {"variants": SCHEMES, "lengths": [32, 48, 96], "rows": 2, "bucket": 32, "methods": ["yarn"]}
    return build_spec(ExtrapolateSpec, {"output_dir": given["output_dir"], "base": base, **shared, **keys})


def test_every_length_predicts_the_same_tokens():
    model, ids = model_of(), draw_ids(3, row_length(LENGTHS) + 1)
    assert row_length(LENGTHS) == 24
    for length in LENGTHS:
        found = losses_by_position(model, ids, length)
        assert found.shape == (3 * 24 // length, length)
        begin = length  # the second window of the first row
        if begin < 24:
            with torch.no_grad():
                logits = model(ids[:1, begin : begin + length]).logits[0]
            alone = cross_entropy(logits, ids[0, begin + 1 : begin + length + 1], reduction="none")
            assert (found[1] - alone).abs().max() < 1e-5
    found = measure_lengths(model, ids, LENGTHS, bucket=10)
    assert [entry["tokens"] for entry in found["by_length"]] == [72, 72, 72]
    assert [(entry["start"], entry["end"]) for entry in found["by_position"]] == [(0, 10), (10, 20), (20, 24)]
    widths = torch.tensor([10, 10, 4])
    total = (torch.tensor([entry["loss"] for entry in found["by_position"]]) * widths).sum() / 24
    assert total.item() == pytest.approx(found["by_length"][-1]["loss"], abs=1e-6)


def test_a_learned_table_refuses_and_says_why():
    found = measure_lengths(model_of(position_embedding_type="learned"), draw_ids(2, 25), LENGTHS, bucket=8)
    first, *beyond = found["by_length"]
    assert first["loss"] > 0 and first["refused"] is None
    for entry, last in zip(beyond, (11, 23), strict=True):
        assert entry["loss"] is None and f"position {last} lies beyond the learned table" in entry["refused"]
    assert found["by_position"][-1]["end"] == 8
    assert cell({"perplexity": None}) == "refused"


def test_rope_is_also_read_rescaled():
    model, ids = model_of(), draw_ids(2, 25)
    readings = readings_of(model, ["ntk", "yarn"], 3.0)
    assert list(readings) == ["as trained", "ntk", "yarn"] and readings["as trained"] is model
    expected = losses_by_position(scaled_model(model, "yarn", 3.0), ids, 24)
    assert torch.equal(losses_by_position(readings["yarn"], ids, 24), expected)
    assert not torch.equal(losses_by_position(model, ids, 24), expected)
    assert list(readings_of(model_of(position_embedding_type="alibi"), ["ntk"], 3.0)) == ["as trained"]


def test_means_over_seeds_and_files(tmp_path):
    spec = spec_of(tmp_path, base={}, seeds=[0, 1], lengths=LENGTHS, methods=["yarn"])
    measured = {}
    for seed in (0, 1):
        for variant, keys in (("RoPE", {}), ("learned", {"position_embedding_type": "learned"})):
            torch.manual_seed(seed)
            readings = readings_of(model_of(**keys), spec.methods, 3.0)
            ids = draw_ids(2, 25, seed=seed)
            measured[variant, seed] = {name: measure_lengths(reading, ids, LENGTHS, 8) for name, reading in readings.items()}
    results = collect(spec, measured, 8)
    assert [row["name"] for row in results["rows"]] == ["RoPE", "RoPE, yarn", "learned"]
    two = [measured["RoPE", seed]["as trained"]["by_length"][0]["loss"] for seed in (0, 1)]
    first = results["rows"][0]["by_length"][0]
    assert first["loss"] == pytest.approx(sum(two) / 2) and first["half_width"] > 0 and results["rows"][0]["seeds"] == 2
    page = write_results(results, tmp_path).read_text()
    assert "refused" in page and "RoPE, yarn" in page and page.count("data:image/png") == 1
    assert json.loads((tmp_path / "extrapolation.json").read_text())["rows"][0]["by_length"][0] == first
    rows = list(csv.DictReader((tmp_path / "extrapolation.csv").open()))
    assert sum(row["refused"].startswith("position") for row in rows) == 2
    assert sum(line.startswith("learned refuses 12, 24 tokens: position 11 lies beyond") for line in in_words(results)) == 1


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"lengths": [32, 16]}, "lengths=.32, 16. must ascend"),
        ({"lengths": [16, 32]}, "end within data.sequence_length=32"),
        ({"lengths": [32, 4096]}, "4,096 tokens.*longest held-out document has .* bytes"),
        ({"base": {"model": {"max_position_embeddings": 64}}}, "max_position_embeddings=64 must be data.sequence_length=32"),
        ({"methods": ["yarm"]}, "methods: 'yarm' is unknown .did you mean 'yarn'"),
        ({"rows": 0}, "rows=0 must be at least 1"),
        ({"variants": {"odd": {"model.position_embedding_type": "alibbi"}}}, "variant 'odd'.*did you mean 'alibi'"),
    ],
)
def test_what_is_refused_before_anything_runs(tmp_path, keys, said):
    with pytest.raises(ValueError, match=said):
        extrapolate(spec_of(tmp_path, **keys), announce=[].append)
    assert not list(tmp_path.glob("out/training/runs/*"))


def test_the_shipped_recipe_is_valid():
    from hf_variants.training import load_spec

    spec = load_spec(ExtrapolateSpec, "recipes/extrapolate.yaml")
    assert check_extrapolation(spec, spec.ablation()) == 512 and spec.lengths[-1] == 2048


@pytest.mark.slow
def test_from_training_to_report(tmp_path):
    lines = []
    results = extrapolate(spec_of(tmp_path, seeds=[0, 1], match="flops"), announce=lines.append)
    names = [row["name"] for row in results["rows"]]
    assert names == ["RoPE", "RoPE, yarn", "alibi", "learned"] and all(row["seeds"] == 2 for row in results["rows"])
    assert {run["steps"] for run in results["training"]["runs"]} == {6}
    learned = results["rows"][-1]["by_length"]
    assert [entry["refused"] is None for entry in learned] == [True, False, False]
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/**/*.safetensors")}
    measured = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/measured/*/*/stage.json")}
    assert len(stamps) == 6 and len(measured) == 6
    again = extrapolate(spec_of(tmp_path, seeds=[0, 1], match="flops"), announce=lines.append)
    assert again["rows"] == results["rows"]
    assert {path: path.stat().st_mtime_ns for path in [*stamps, *measured]} == {**stamps, **measured}
    # other lengths are measured anew, and nothing is trained
    longer = extrapolate(spec_of(tmp_path, seeds=[0], lengths=[32, 128], match="flops"), announce=lines.append)
    assert [entry["length"] for entry in longer["rows"][0]["by_length"]] == [32, 128]
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
