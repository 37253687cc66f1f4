"""The comparison with peer libraries: what a row says, what is refused, what is skipped, and the process that answers."""

import json
import sys

import pytest

from benchmarks import peers
from benchmarks.__main__ import read_results
from benchmarks.case import OURS, REFERENCE
from benchmarks.generation import SHAPE
from benchmarks.table import met, row_of

ABOUT = {"machine": "made up", "limits": {}}
TAKEN = {REFERENCE: [(2.0, 2.0)] * 3, "litgpt": [(3.0, 4.0)] * 3, OURS: [(1.5, 2.0), (1.5, 2.0), (15.0, 2.0)]}
TINY = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": 32},
}


def test_a_row_compares_ours_with_the_peer_and_stands_in_the_table(tmp_path):
    values = {side: [1.0, -2.0] for side in TAKEN}
    row = peers.row_of("prefill", "litgpt", TAKEN, values, ABOUT)
    assert row["speed"] == 2.0 and row["cpu"] == 2.0 and row["rounds"] == 3 and row["difference"] == 0
    assert met(row) == {"speed": True} and list(row["sides"]) == ["litgpt", REFERENCE, OURS]
    assert row_of(row)[:4] == ("prefill_litgpt", f"{2048 / 3:.1f} (litgpt)", f"{2048 / 1.5:.1f}", "2.00 x")
    (tmp_path / "prefill_litgpt.json").write_text(json.dumps(row))
    assert list(read_results(tmp_path)) == ["prefill_litgpt"]


@pytest.mark.parametrize("wrong", [[1.0, -2.1], [1.0, float("nan")], [1.0]])
def test_another_computation_is_not_compared(wrong):
    values = {REFERENCE: [1.0, -2.0], "litgpt": wrong, OURS: [1.0, -2.0]}
    with pytest.raises(ValueError, match="prefill: litgpt"):
        peers.row_of("prefill", "litgpt", TAKEN, values, ABOUT)


def test_what_cannot_be_installed_is_skipped_with_how_to_do_it(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path / "none")
    said = []
    monkeypatch.setattr(peers, "install_commands", lambda peer: [[sys.executable, "-c", "raise SystemExit('no network')"]])
    assert peers.environment("litgpt", said.append) is None
    assert "litgpt: SKIPPED" in said[-1] and "no network" in said[-1] and "run again" in said[-1]
    monkeypatch.setattr(peers, "install_commands", lambda peer: [[sys.executable, "-c", "pass"]])
    assert peers.environment("litgpt", said.append) == str(tmp_path / "none" / "litgpt" / "bin" / "python")
    monkeypatch.setattr(peers, "install_commands", lambda peer: pytest.fail("installed twice"))
    assert peers.environment("litgpt", said.append)


def test_every_install_is_pinned():
    lines = peers.PINNED.read_text(encoding="utf-8").splitlines()
    assert all("==" in line for line in lines if not line.startswith("#"))
    for peer, package in peers.PEERS.items():
        _, torch_first, rest = peers.install_commands(peer)
        assert torch_first[-1].startswith("torch==") and package in rest and str(peers.PINNED) in rest
        assert any(line.startswith(f"{package}==") for line in lines)


def test_measured_works_are_kept_and_an_unknown_one_is_refused(tmp_path):
    names = [f"{name}.json" for name in peers.ROWS if name.startswith("decode")]
    for name in names:
        (tmp_path / name).write_text("{}")
    options = ["--results", str(tmp_path)]
    assert peers.wanted_works(peers.parse(options)) == ["prefill", "train"]
    assert peers.wanted_works(peers.parse([*options, "--again"])) == ["prefill", "decode", "train"]
    assert peers.wanted_works(peers.parse([*options, "decode"])) == ["decode"]
    with pytest.raises(ValueError, match="unknown work 'speed'; choose from"):
        peers.wanted_works(peers.parse(["speed"]))


@pytest.mark.slow
def test_workers_answer_and_agree(tmp_path, monkeypatch):
    """Native and ours (here in the place of a peer too) through real processes; a dead worker says why it died."""
    for work, (question, units, title, tolerance) in list(peers.WORKS.items()):
        small = {**question, "batch": 1, "length": 8, **({"tokens": 4} if "tokens" in question else {})}
        monkeypatch.setitem(peers.WORKS, work, (small, units, title, tolerance))
    shape, weights = {**SHAPE, **peers.LENGTHS, **TINY}, str(tmp_path / "weights.safetensors")
    peers.save_weights(shape, weights)
    settings = {"shape": shape, "weights": weights, "threads": 1}
    sides = {REFERENCE: sys.executable, OURS: sys.executable}
    workers = {side: peers.Worker(python, side, settings) for side, python in sides.items()}
    for work, (question, _, _, tolerance) in peers.WORKS.items():
        taken, values = peers.alternate(workers, question, 1, 10)
        assert peers.differences(work, values, tolerance)[OURS] <= tolerance
        assert len(taken[OURS]) == 1 and len(values[OURS]) == {"prefill": 64, "decode": 4, "train": 2}[work]
    assert workers[OURS].ask({**peers.WORKS["train"][0], "do": "peak"})["peak"] > 0
    for worker in workers.values():
        worker.close()
    broken = peers.Worker(sys.executable, REFERENCE, {**settings, "weights": str(tmp_path / "none.safetensors")})
    with pytest.raises(RuntimeError, match=r"(?s)the worker of native died .*none\.safetensors"):
        broken.ask(peers.WORKS["train"][0])
    broken.close()
