"""Layer by layer: an interrupted run continues and ends bitwise as an uninterrupted one, little is held at a time, and what
stays beside the target is removed."""

import json
import resource

import pytest
import torch
from safetensors.torch import load_file

from hf_variants.jobs import QuantizeSpec
from hf_variants.jobs.quantization import quantize as quantize_job
from hf_variants.quantize import quantize_awq, quantize_checkpoint
from hf_variants.quantize.checkpoint import ids_perplexity
from hf_variants.quantize.stacks import stacks_of
from hf_variants.quantize.store import leftovers
from hf_variants.training.errors import RunStopped
from hf_variants.training.spec_parsing import build_spec
from tests.quantize.quantized import FITTING_EXPERTS, calibration, fitting
from tests.variants import draw_ids


class Stop(Exception):
    pass


def stop_after(layers):
    def progress(done, total, name):
        if done == layers:
            raise Stop

    return progress


def quantize(folder, name, **options):
    settings = {"group_size": 32, "calibration": calibration(8), "calibration_length": 32}
    return quantize_checkpoint(folder / "full", folder / name, **{**settings, **options})


def tensors(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gqa", "moe_shared_gate"])
def test_an_interrupted_run_continues_and_ends_alike(name, tmp_path):
    model = fitting(name, **(FITTING_EXPERTS if name != "gqa" else {}), num_hidden_layers=3)
    model.save_pretrained(tmp_path / "full")
    whole = quantize(tmp_path, "whole", eval_ids=draw_ids(2, 16))
    with pytest.raises(Stop):
        quantize(tmp_path, "q", eval_ids=draw_ids(2, 16), progress=stop_after(2))
    assert not (tmp_path / "q").exists() and len(leftovers(tmp_path / "q")) == 1
    [kept] = leftovers(tmp_path / "q")
    times = {file.name: file.stat().st_mtime_ns for file in kept.iterdir()}
    assert set(times) == {f"layer-0000{n}.{kind}" for n in (0, 1) for kind in ("safetensors", "json")}
    seen = []

    def watch(done, total, layer):
        seen.append(layer)
        # finished layers are read, not made again
        assert all(file.stat().st_mtime_ns == times[file.name] for file in kept.iterdir() if file.name in times)

    report = quantize(tmp_path, "q", eval_ids=draw_ids(2, 16), progress=watch)
    assert seen == [f"model.layers.{n}" for n in range(3)]
    first, second = tensors(tmp_path / "whole"), tensors(tmp_path / "q")
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
    for key in ("layers", "perplexity", "tokens_per_expert", "skipped_sites", "quantized_parameters"):
        assert report[key] == whole[key]
    assert leftovers(tmp_path / "q") == []


@pytest.mark.slow
def test_a_torn_layer_is_made_again(tmp_path):
    fitting().save_pretrained(tmp_path / "full")
    quantize(tmp_path, "whole")
    with pytest.raises(Stop):
        quantize(tmp_path, "q", progress=stop_after(1))
    [kept] = leftovers(tmp_path / "q")
    (kept / "layer-00000.json").unlink()
    quantize(tmp_path, "q")
    first, second = tensors(tmp_path / "whole"), tensors(tmp_path / "q")
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
def test_layers_of_other_settings_are_removed_not_read(tmp_path):
    fitting().save_pretrained(tmp_path / "full")
    with pytest.raises(Stop):
        quantize(tmp_path, "q", progress=stop_after(1))
    [old] = leftovers(tmp_path / "q")
    with pytest.raises(Stop):
        quantize(tmp_path, "q", symmetric=True, progress=stop_after(1))
    [new] = leftovers(tmp_path / "q")
    assert new != old
    fitting(seed=5).save_pretrained(tmp_path / "full")
    quantize(tmp_path, "q", symmetric=True)
    assert leftovers(tmp_path / "q") == []
    assert json.loads((tmp_path / "q" / "quantization_report.json").read_text())["symmetric"] is True


def test_perplexities_walk_beside_and_equal_those_of_whole_models(tmp_path):
    model, ids = fitting("tied", final_logit_softcapping=5.0), draw_ids(3, 24)
    result = quantize_awq(model, calibration(8), group_size=32, eval_ids=ids, dtype=torch.float32)
    from hf_variants.quantize import quantize_rtn

    expected = {
        "full": ids_perplexity(model, ids),
        "rtn": ids_perplexity(quantize_rtn(model, group_size=32, dtype=torch.float32).model, ids),
        "awq": ids_perplexity(result.model, ids),
    }
    for name, value in expected.items():
        assert result.report.perplexity[name] == pytest.approx(value, rel=1e-5)
    assert len(set(expected.values())) == 3
    rounded = quantize_rtn(model, group_size=32, dtype=torch.float32).model
    with torch.no_grad():
        full, *others = ((each(ids).logits[:, :-1].log_softmax(-1)) for each in (model, rounded, result.model))
    for name, moved in zip(("rtn", "awq"), others, strict=True):
        kl = (full.exp() * (full - moved)).sum(-1).mean()
        assert result.report.divergence[name] == pytest.approx(float(kl), rel=1e-3) and kl > 0
    assert set(result.report.divergence) == {"rtn", "awq"}


def test_released_layers_are_gone_and_the_result_is_the_same():
    model = fitting()
    kept = quantize_awq(model, calibration(8), group_size=32)
    assert all(layer.state_dict() for layer in stacks_of(model)[0].layers(model))
    seen = []

    def progress(done, total, name):
        seen.append(sum(p.numel() for layer in stacks_of(model)[0].layers(model) for p in layer.parameters()))

    released = quantize_awq(model, calibration(8), group_size=32, release=True, progress=progress)
    assert seen == sorted(seen, reverse=True)
    ids = draw_ids(2, 16)
    with torch.no_grad():
        assert torch.equal(kept.model(ids).logits, released.model(ids).logits)


def test_a_full_disk_is_said_before_the_work(tmp_path, monkeypatch):
    fitting().save_pretrained(tmp_path / "full")
    monkeypatch.setattr("hf_variants.quantize.checkpoint.shutil.disk_usage", lambda path: type("D", (), {"free": 10})())
    with pytest.raises(ValueError, match=r"GB are needed and 0\.00 GB are free"):
        quantize(tmp_path, "q")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


@pytest.mark.slow
def test_a_disk_that_fills_while_it_is_written_leaves_what_a_run_continues_from(tmp_path):
    fitting().save_pretrained(tmp_path / "full")
    keys = {"model_path": str(tmp_path / "full"), "output_dir": str(tmp_path / "q"), "method": "rtn", "group_size": 32}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        # layers fit, the whole checkpoint does not
        with pytest.raises(
            RunStopped, match="could not be written .*too large.* finished layers are kept beside it; make room"
        ):
            quantize_job(build_spec(QuantizeSpec, keys))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in (tmp_path / "q").iterdir()] == ["stage.json"]
    [kept] = leftovers(tmp_path / "q")
    assert len(list(kept.glob("layer-*.json"))) == 2
    assert quantize_job(build_spec(QuantizeSpec, keys))["quantized_modules"] == 14
    assert leftovers(tmp_path / "q") == []
