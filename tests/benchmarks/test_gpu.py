"""The run on a card, without one: counters stand in for torch.cuda, so that lines that only a card reaches run here too."""

import json
import sys
import time
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import card as card_module
from benchmarks.gpu import measure as measuring
from benchmarks.gpu.calls import Training
from benchmarks.gpu.card import Card
from benchmarks.gpu.measure import Section
from benchmarks.gpu.results import markdown, row_of
from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.sides import NATIVE, Side
from hf_variants.convert import config_from_native
from hf_variants.modeling import blockwise_attention
from hf_variants.modeling.modeling_variants import VariantsForCausalLM

GIB = 2**30


class Event:
    """A CUDA event; `made` keeps the order of what was recorded."""

    made = []

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.made.append(self)
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        return (end.at - self.at) * 1000


@pytest.fixture
def card(monkeypatch):
    """A card whose tensors lie on the CPU and whose allocator holds parameters and gradients of the sides that are there."""
    present, calls = {}, []
    properties = type("Properties", (), {"total_memory": 141 * GIB, "multi_processor_count": 132})

    def held(device=None):
        return sum(p.nbytes + (0 if p.grad is None else p.grad.nbytes) for side in present.values() for p in side.parameters())

    played = {
        "synchronize": lambda device=None: calls.append("synchronize"),
        "empty_cache": lambda: calls.append("empty_cache"),
        "Event": Event,
        "get_device_name": lambda device=None: "NVIDIA H200",
        "get_device_properties": lambda device=None: properties,
        "memory_allocated": held,
        "max_memory_allocated": held,
        "reset_peak_memory_stats": lambda device=None: calls.append("reset"),
    }
    for name, function in played.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(Side, "park", lambda side: (side.clear(), present.pop(side.name, None)))
    monkeypatch.setattr(Side, "fetch", lambda side, device: present.update({side.name: side.model}))
    monkeypatch.setattr(card_module.gc, "collect", lambda: None)  # in a long run of tests it takes a third of a second
    made = Card("cuda")
    made.device, made.dtype, made.calls, made.present = torch.device("cpu"), torch.float32, calls, present
    return made


SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
STEP = Section("made up", lambda tiny: LlamaConfig(**SMALL), lambda tiny: (1, 8), lambda tiny: Training())
LIMITS = {"matrix_tflops": 1.0, "sheet_tflops": None, "memory_gb_per_second": 1.0, "bytes_per_number": 4}


def measured(section, card, seconds=1e6, tiny=True):
    kept = []
    clock = measuring.Clock(seconds)
    return measuring.measure(section, card, clock, LIMITS, tiny, lambda found: kept.append(json.dumps(found))), kept


def test_mfu_is_counted_work_over_the_card_s_own_rate():
    call = type("Call", (), {"work": lambda self, config, ids, size: {"flops": 3e12, "bytes": 2e9}})()
    side = type("Holder", (), {"call": call, "ids": None, "model": type("Model", (), {"config": None})})
    unknown = measuring.shares(side, 2.0, {**LIMITS, "matrix_tflops": 3.0, "memory_gb_per_second": 4.0})
    assert unknown == {"tflops": 1.5, "of_product": 0.5, "mfu": 0.5, "of_memory": 0.25}
    assert measuring.shares(side, 2.0, {**LIMITS, "matrix_tflops": 3.0, "sheet_tflops": 6.0})["mfu"] == 0.25


def test_each_peak_is_of_one_side_alone(card):
    result, kept = measured(STEP, card)
    assert not result["failed"] and len(kept) >= 3
    native, ours = (result["sides"][name] for name in (NATIVE, "ours"))
    weights = sum(p.nbytes for p in card.present[NATIVE].parameters())
    # weights alone before the step, weights and gradients at its height, nothing of the other side
    for numbers in (native, ours):
        assert numbers["held_gib"] == weights / GIB and numbers["peak_gib"] == 2 * weights / GIB
    assert set(card.present) == {NATIVE, "ours"} and {"reset", "empty_cache", "synchronize"} <= set(card.calls)
    assert ours["check"]["agrees"] and max(ours["check"]["fp32"].values()) < 1e-5 and ours["speed"] > 0
    assert native["rounds"] == ours["rounds"] >= 3


def test_sides_run_in_turn_and_one_that_fails_leaves_the_others(card, monkeypatch):
    order, run = [], Side.run

    def watched(side):
        order.append(side.name)
        if side.name == "ours flex":
            raise RuntimeError("no kernel")
        return run(side)

    monkeypatch.setattr(Side, "run", watched)
    result, _ = measured(replace(STEP, sides={"ours": "sdpa", "ours flex": "flex_attention"}), card)
    assert "peak ours flex" in result["failed"] and "no kernel" in result["failed"]["speed ours flex"]
    assert result["sides"]["ours"]["speed"] > 0 and "seconds" not in result["sides"]["ours flex"]
    rounds = order[-2 * result["sides"]["ours"]["rounds"] :]
    assert rounds[:4] == [NATIVE, "ours", "ours", NATIVE]


def test_time_is_looked_at_between_measurements(card):
    result, kept = measured(STEP, card, seconds=0.0)
    assert set(result["failed"]) == {f"{what} {side}" for what in ("peak", "speed") for side in (NATIVE, "ours")}
    assert result["sides"]["ours"]["check"]["agrees"] and kept


def test_wrong_numbers_have_no_speed(card, monkeypatch):
    convert = measuring.convert

    def spoiled(*given):
        model = convert(*given)
        with torch.no_grad():
            model.lm_head.weight.mul_(1.05)
        return model

    monkeypatch.setattr(measuring, "convert", spoiled)
    result, _ = measured(STEP, card)
    numbers = result["sides"]["ours"]
    assert numbers["check"]["agrees"] is False
    assert row_of("training", "ours", numbers)[3] == " WRONG"


def test_a_lost_card_goes_on_in_a_new_process_with_what_is_left(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(command.os, "execv", lambda program, words: started.append(words) or sys.exit(0))
    monkeypatch.setattr(Card, "is_usable", lambda self: False)
    monkeypatch.setattr(command, "measure", lambda *given: {"title": "made up", "sides": {}, "failed": {}})
    target = tmp_path / "gpu.json"
    with pytest.raises(SystemExit):
        command.main(["training", "alibi", "latent", "--tiny", "--output", str(target)])
    assert started[0][3:6] == ["alibi", "latent", "--add"]
    monkeypatch.setattr(Card, "is_usable", lambda self: True)
    assert set(command.main(started[0][3:])["sections"]) == {"training", "alibi", "latent"}
    assert set(json.loads(target.read_text())["sections"]) == {"training", "alibi", "latent"}


@pytest.mark.parametrize("name", ["softcap", "alibi", "sinks", "window", "latent", "experts"])
def test_nothing_of_a_step_is_made_on_another_device(name):
    """On a device that holds shapes alone, a tensor that the model makes on the CPU does not fit the others."""
    config = config_from_native(SECTIONS[name].config(True))
    with torch.device("meta"):
        model = VariantsForCausalLM(config).to(torch.bfloat16).train()
    ids = torch.ones(2, 24, dtype=torch.long, device="meta")
    if not SECTIONS[name].call(True).trains:
        model.eval()
        past = model(ids, use_cache=True).past_key_values
        assert model(ids[:, :1], past_key_values=past, use_cache=True).logits.device.type == "meta"
        return
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert all(parameter.grad.device.type == "meta" for parameter in model.parameters())


def test_blocks_of_scores_off_the_cpu_are_worth_their_kernels():
    """A Gemma-2 layer at 4096 tokens and 32 heads: a few blocks, where blocks that fit a CPU's cache would be 256."""
    query = torch.empty(1, 32, 4096, 64, device="meta")
    assert len(blockwise_attention._blocks(query, query[:, :8])) == 8


@pytest.mark.slow
def test_the_whole_run_works_on_small_shapes(tmp_path):
    target = tmp_path / "gpu.json"
    results = command.main(["--tiny", "--output", str(target)])
    assert json.loads(target.read_text()) == results and set(results["sections"]) == set(SECTIONS)
    for name, section in results["sections"].items():
        # on a CPU flex_attention refuses training, and nothing else may fail
        assert all("flex" in what and "on a CPU" in why for what, why in section["failed"].items()), section["failed"]
        ours = section["sides"]["ours"]
        assert ours["check"]["agrees"] and max(ours["check"]["fp32"].values()) < 1e-5, name
        assert ours.get("same_tokens", 1.0) == 1.0 and ours["speed"] > 0
    assert target.with_suffix(".md").read_text() == markdown(results)
    assert target.with_suffix(".svg").read_text().startswith("<?xml")
