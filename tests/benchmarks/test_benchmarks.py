"""The benchmarks measure what they say, refuse wrong numbers, and the prepared GPU run works on small shapes."""

import json

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import growth, loading, recipe, work
from benchmarks.case import OURS, Case, Ready, measure
from benchmarks.cases import CASES, find_case
from benchmarks.generation import CONFIG, graphs_of_shapes_seen_before
from benchmarks.run_case import share_of_limit
from benchmarks.table import markdown, met


def case_of(ours_value, **options):
    def build(sides):
        made = {"native": Ready(lambda: torch.ones(3), 2), OURS: Ready(lambda: torch.full((3,), ours_value), 2)}
        return {side: made[side] for side in sides}

    return Case("made_up", "made up", build, rounds=2, **options)


def test_a_speed_of_wrong_numbers_is_not_measured():
    assert measure(case_of(1.0))["difference"] == 0
    for value in (1.1, float("nan")):
        with pytest.raises(ValueError, match="made_up: ours and native differ"):
            measure(case_of(value))


def test_targets_are_bounds_from_the_right_side():
    result = {"targets": {"speed": 1.1, "peak": 0.7, "share": 0.85}, "speed": 1.2, "peak": 0.6, "share": 0.9}
    assert met(result) == {"speed": True, "peak": True, "share": True}
    assert met({**result, "speed": 1.0, "peak": 0.8, "share": 0.5}) == {"speed": False, "peak": False, "share": False}


def test_the_share_of_the_limit_is_counted_work_over_time():
    found = {"sides": {OURS: {"seconds": 2.0}}, "limits": {"fp32 GEMM GFLOP/s": 100.0, "fp32 weights GB/s": 10.0}}
    assert share_of_limit(case_of(1.0, flops=1e11), found) == {"share": 0.5, "share_of": "GEMM"}
    assert share_of_limit(case_of(1.0, bytes=1e10), found) == {"share": 0.5, "share_of": "streaming"}

    assert share_of_limit(case_of(1.0, bytes=lambda: 1e10), found) == {"share": 0.5, "share_of": "streaming"}


def test_every_case_counts_its_work():
    """All but the import of the package, which has neither products nor weights."""
    for name, case in CASES.items():
        amounts = [part() if callable(part) else part for part in (case.flops, case.bytes) if part is not None]
        assert len(amounts) == (0 if name == "import" else 1) and all(amount > 1e6 for amount in amounts), name


def test_work_is_counted_by_the_familys_counters():
    dense = 12 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
    pairs = 12 * 9 * 64 * 2 * 2 * (512 + 1) / 2
    head = 2 * 576 * 49152
    assert work.prefill_flops(CONFIG, 4, 512) == 4 * (512 * (2 * dense + pairs) + head)
    assert work.training_flops(CONFIG, 4, 512) == 3 * 4 * 512 * (2 * dense + pairs + head)
    norms = 25 * 576
    cache = 12 * 2 * 3 * 64 * 100
    assert work.decode_bytes(CONFIG, 2, 100, 5) == 5 * 4 * (dense + norms + 49152 * 576 + 2 * cache)


def test_further_numbers_are_measured_and_bounded():
    case = case_of(1.0, also=lambda sides: {"graphs": len(sides) - 2}, targets={"graphs": 0})
    found = measure(case)
    assert found["graphs"] == 0 and met({**found, "targets": case.targets}) == {"graphs": True}
    assert met({**found, "graphs": 1, "targets": case.targets}) == {"graphs": False}


def test_what_an_import_adds_is_timed_in_processes_of_their_own():
    sides = {OURS: Ready(loading.Imports("import time; time.sleep(0.05)", "import time; time.sleep(0.2)"))}
    loading._IMPORT, whole = (
        "import time; {before}; began = time.perf_counter(); {what}; print(time.perf_counter() - began)",
        (loading._IMPORT),
    )
    try:
        for _ in range(3):
            sides[OURS].run()
    finally:
        loading._IMPORT = whole
    assert 50 <= loading.added_milliseconds(sides)["import_ms"] < 200 and len(sides[OURS].run.taken) == 3


def result_of_decode():
    return {
        **{"case": "decode", "unit": "tokens", "targets": {"speed": 1.25, "graphs": 0}, "speed": 1.3, "cpu": 1.2, "graphs": 2},
        **{"machine": "made up, 2026-01-02", "limits": {"fp32 GEMM GFLOP/s": 100.0}},
        "sides": {"native": {"per_second": 10.0}, OURS: {"per_second": 13.0}},
    }


def test_the_page_gets_the_table_between_its_marks(tmp_path):
    page, results = tmp_path / "page.md", tmp_path / "results"
    results.mkdir()
    (results / "decode.json").write_text(json.dumps(result_of_decode()))
    page.write_text("before\n<!-- results: begin -->\nold\n<!-- results: end -->\nafter\n")
    for _ in range(2):
        command.main(["--table", "--results", str(results), "--page", str(page)])
    text = page.read_text()
    assert text.startswith("before\n<!-- results: begin -->\n1 of 2 targets reached") and "old" not in text
    assert text.endswith("<!-- results: end -->\nafter\n") and "made up, 2026-01-02" in text
    assert "| decode | 10.0 (native) | 13.0 | 1.30 x | 1.20 x |" in text
    assert "speed 1.25 reached, graphs 0 MISSED (graphs 2)" in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="needs the lines"):
        command.main(["--table", "--results", str(results), "--page", str(page)])
    with pytest.raises(SystemExit, match="measure first"):
        command.main(["--table", "--results", str(tmp_path), "--page", str(page)])
    assert page.read_text() == "no marks"


def test_the_page_of_benchmarks_has_the_marks():
    text = command.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- results: begin -->") == text.count("<!-- results: end -->") == 1


@pytest.mark.slow
def test_shapes_seen_before_compile_nothing():
    found = graphs_of_shapes_seen_before()
    assert found["graphs"] == 0 and found["graphs_first"] >= 1


def test_the_table_names_every_case_and_an_unknown_one_is_refused():
    result = {
        **{"case": "decode", "unit": "tokens", "targets": {"speed": 1.25}, "speed": 1.3, "cpu": 1.2},
        "sides": {"native": {"per_second": 10.0}, OURS: {"per_second": 13.0}},
    }
    assert "| decode | 10.0 (native) | 13.0 | 1.30 x |" in markdown({"decode": result})
    assert all(find_case(name).targets for name in CASES)
    with pytest.raises(ValueError, match="unknown case 'speed'; choose from"):
        find_case("speed")


def test_growth_is_counted_and_drawn():
    result = {"axis": "batch", "label": "rows", "machine": "made up", "points": {}}
    for rows in (1, 2, 4):
        result["points"][str(rows)] = {"native": rows * 2.0, OURS: rows * 1.0, "flops": rows * 5}
    figure = growth.figure_of(result)
    assert figure.image.lstrip().startswith(b"<?xml") and "counted FLOPs" in figure.alt


def test_the_shares_of_a_step_are_of_the_whole_step(tmp_path, monkeypatch):
    """A callback and a row that sleep are seen with the share that they take."""
    import time

    from hf_variants import VariantsConfig, VariantsForCausalLM
    from hf_variants.training.callbacks import ThroughputCallback

    monkeypatch.setattr(recipe, "LENGTH", 16)
    tiny = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    model = VariantsForCausalLM(VariantsConfig(**{**recipe.SHAPE, **tiny}))
    _, rows = recipe.random_rows(recipe.STEPS * recipe.BATCH, tmp_path / "rows")
    monkeypatch.setattr(ThroughputCallback, "on_pre_optimizer_step", lambda *args, **kwargs: time.sleep(0.2))
    found = recipe.shares(recipe.recipe_trainer(model, rows, str(tmp_path / "out")))
    assert set(found) == {"ExpertMetricsCallback", "PerplexityCallback", "ThroughputCallback", "checks of numbers", "rows"}
    assert 0.5 < found["ThroughputCallback"] < 1.3 and 0 < found["checks of numbers"] < 0.3
