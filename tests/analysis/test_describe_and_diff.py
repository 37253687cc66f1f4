"""What `describe` draws is what a layer computes, and what `diff` reports is what tells two configs apart."""

import json
import random

import pytest
import torch
from published_configs import PUBLISHED
from torch import nn

from hf_variants import VariantsConfig, VariantsForCausalLM, cli
from hf_variants.analysis import describe, describe_text, diff_configs, flops_per_token, kv_cache_bytes
from hf_variants.analysis.config_diff import short_value
from hf_variants.analysis.diagram import EQUATIONS
from hf_variants.analysis.layer_pattern import pattern_of
from hf_variants.convert import config_to_native, expressible_families
from hf_variants.modeling.blocks import TOPOLOGIES
from hf_variants.presets import list_presets, load_preset, preset_keys

TINY = [name for name in list_presets() if name.startswith("tiny/")]


def unfold(pattern):
    return [kind for times, runs in pattern for _ in range(times) for count, kind in runs for _ in range(count)]


def test_patterns_unfold_to_the_layers():
    draw = random.Random(0)
    for _ in range(300):
        kinds = [draw.choice("ab") for _ in range(draw.randint(1, 20))]
        assert unfold(pattern_of(kinds)) == kinds
    assert pattern_of(list("aaab" * 5)) == [(5, [(3, "a"), (1, "b")])]
    assert pattern_of(list("d" + "ab" * 4 + "a")) == [(1, [(1, "d")]), (4, [(1, "a"), (1, "b")]), (1, [(1, "a")])]
    assert pattern_of(list("aabbb")) == [(1, [(2, "a")]), (1, [(3, "b")])]


class Affine(nn.Module):
    def forward(self, x):
        return 1.5 * x - 0.5


@pytest.mark.parametrize("placement", TOPOLOGIES)
def test_the_equations_are_what_a_layer_computes(placement):
    config = load_preset("tiny/base", norm_placement=placement, vocab_size=8)
    layer = VariantsForCausalLM(config).model.layers[0]
    for name in layer.norms:
        setattr(layer, name, Affine())
    names = {"attention": lambda x: 0.3 * x + 1, "mlp": lambda x: 2 - 0.7 * x, "norm": Affine(), "x": torch.randn(1, 3, 128)}
    layer.attend, layer.feed = lambda x, **_: names["attention"](x), lambda x, _: names["mlp"](x)
    for line in EQUATIONS[placement]:
        for equation in reversed(line.split(", ")):
            if "=" in equation:
                name, right = equation.split(" = ")
                names[name] = eval(right, {}, names)
    assert torch.allclose(layer(names["x"]), names["y"], atol=1e-6)
    assert sum(line.count("norm(") for line in EQUATIONS[placement]) == len(layer.norms)


@pytest.mark.parametrize("name", TINY)
def test_every_toggle_is_described_and_seen_by_diff(name):
    text = describe_text(load_preset(name), 64, title=name)
    assert name in text and "attention" in text and "logits" in text
    facts = diff_configs("tiny/base", name)
    assert json.loads(json.dumps(facts)) == facts
    keys = preset_keys(name).keys() - preset_keys("tiny/base").keys()
    same = name in ("tiny/base", "tiny/mha")
    # shorthands are fields no more once a config is made
    named = keys | ({"num_key_value_heads"} if name == "tiny/mqa" else set())
    assert (not facts["toggles"]) if same else set(facts["toggles"]) & named, facts["toggles"]


def test_a_toggle_shows_what_it_changes():
    facts = diff_configs("llama-3-8b", load_preset("llama-3-8b", num_key_value_heads=1), length=1000)
    assert facts["toggles"] == {"num_key_value_heads": [8, 1]}
    assert facts["costs"]["kv_bytes"] == [1000 * 32 * 2 * heads * 128 * 2 for heads in (8, 1)]
    less = 32 * 2 * 7 * 128 * 4096
    for name in ("parameters", "active_parameters", "parameters.attention"):
        before, after = facts["costs"][name]
        assert before - after == less
    assert "parameters.embedding" in facts["costs"] and facts["length"] == 1000


def test_fewer_layers_are_one_difference():
    facts = diff_configs(load_preset("llama-3-8b"), load_preset("llama-3-8b", num_hidden_layers=16))
    assert facts["toggles"] == {"num_hidden_layers": [32, 16]} and facts["length"] == 8192


def test_one_thing_written_in_two_ways_is_no_difference():
    a = VariantsConfig(query_pre_attn_scalar=64, sliding_window=8)
    b = VariantsConfig(sliding_window=8, layer_types=["sliding_attention"] * 8, num_key_value_heads=8)
    assert diff_configs(a, b)["toggles"] == {}


def test_costs_at_several_lengths():
    config = load_preset("gemma-2-9b")
    rows = describe(config)["by_length"]
    assert [row["length"] for row in rows] == [128, 512, 2048, 8192]
    for row in rows:
        assert row["flops_per_token"] == flops_per_token(config, row["length"]).total
        assert row["flops_of_last_token"] == flops_per_token(config, row["length"], "decode").total
        assert row["kv_bytes"] == kv_cache_bytes(config, row["length"])
    assert [row["length"] for row in describe(config, 3)["by_length"]] == [1, 3]


def test_an_encoder_is_said_to_cache_nothing():
    text = describe_text(load_preset("tiny/encoder"))
    assert "KV" not in text and "cache" not in text
    assert diff_configs("tiny/encoder", "tiny/encoder")["costs"]["kv_bytes"] == [0, 0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_is_expressed_by_its_own_family(name):
    assert config_to_native(load_preset(name), PUBLISHED[name][0]).model_type == PUBLISHED[name][0]


def test_native_families_that_mean_the_same():
    assert expressible_families(load_preset("llama-3-8b"))[:2] == ["llama", "mistral"]
    assert expressible_families(load_preset("llama-3-8b", sliding_window=4096))[0] == "mistral"
    assert expressible_families(load_preset("tiny/mla", position_embedding_type="alibi", vocab_size=99)) == []


def test_values_in_short():
    assert short_value(["a"] * 30 + ["b"]) == "30 x a, 1 x b"
    assert short_value(list("abababab")).endswith("... (8 in all)")
    assert short_value({"rope_type": "yarn", "factor": 4.0}) == "rope_type yarn, factor 4.0"


@pytest.mark.parametrize(("options", "message"), [({"dtype": "int3"}, "dtype='int3'"), ({"length": 0}, "length=0")])
def test_bad_arguments_of_diff(options, message):
    with pytest.raises(ValueError, match=message):
        diff_configs("gpt2", "gpt2", **options)


def test_diff_counts_both_at_every_length():
    one, other = load_preset("gemma-2-9b"), load_preset("llama-3-8b")
    rows = diff_configs(one, other, 4096)["by_length"]
    assert [row["length"] for row in rows] == [64, 256, 1024, 4096]
    for row in rows:
        length = row["length"]
        assert row["flops_per_token"] == [flops_per_token(config, length).total for config in (one, other)]
        assert row["flops_of_last_token"] == [flops_per_token(config, length, "decode").total for config in (one, other)]
        assert row["kv_bytes"] == [kv_cache_bytes(config, length) for config in (one, other)]


def drawn(monkeypatch, draw):
    """{title of a panel: {label of its bars: their heights}} of a figure."""
    from hf_variants.report import describe_plot

    figures = []
    save = describe_plot.save_plot
    monkeypatch.setattr(
        describe_plot, "save_plot", lambda paint, *words, **keys: (figures.append(paint), save(paint, *words, **keys))
    )
    draw(describe_plot)
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 3)
    figures[0](list(axes))
    return {
        axis.get_title(): {bars.get_label(): [patch.get_height() for patch in bars] for bars in axis.containers}
        for axis in axes
    }


def test_the_figure_of_describe_shows_its_numbers(monkeypatch, tmp_path):
    facts = describe(load_preset("mixtral-8x7b"), 4096)
    panels = drawn(monkeypatch, lambda plots: plots.plot_description(facts, tmp_path / "a.svg", title="mixtral-8x7b"))
    flops, cache = panels["forward FLOPs per token"], panels["key-value cache, bfloat16"]
    shown = [
        *panels["parameters, mixtral-8x7b"]["experts"],
        *(flops["mean of a row"][-1], flops["of the last, from the cache"][-1], cache["mixtral-8x7b"][-1]),
    ]
    counts, costs = facts["parameters"], facts["flops"]
    assert shown == pytest.approx(
        [
            *(counts[parts]["experts"] / 1e9 for parts in ("parts", "active_parts")),
            *(costs["prefill_per_token"] / 1e9, costs["decode_last_token"] / 1e9, facts["kv_cache"]["bytes"] / 2**20),
        ]
    )
    assert (tmp_path / "a.svg").read_text().rstrip().endswith("</svg>")


def test_the_figure_of_diff_shows_both(monkeypatch, tmp_path):
    facts = diff_configs("tiny/base", "tiny/encoder")
    names = ("one/config.json", "/two/config.json")
    panels = drawn(monkeypatch, lambda plots: plots.plot_diff(facts, tmp_path / "a.svg", names))
    assert panels["parameters"]["attention"] == pytest.approx(
        [count / 1e6 for count in facts["costs"]["parameters.attention"]]
    )
    for side, name in enumerate(("one/config.json", "config.json")):
        counted = [row["flops_per_token"][side] / 1e9 for row in facts["by_length"]]
        assert panels["forward FLOPs per token"][name] == pytest.approx(counted)
    assert panels["key-value cache, bfloat16"]["config.json"] == [0] * len(facts["by_length"])
    facts = diff_configs("tiny/encoder", "tiny/encoder")
    panels = drawn(monkeypatch, lambda plots: plots.plot_diff(facts, tmp_path / "a.svg", ("a", "a")))
    assert set(panels) == {"parameters", "forward FLOPs per token", ""} and set(panels["forward FLOPs per token"]) == {
        "a",
        "a (B)",
    }


@pytest.mark.slow
def test_figures_by_the_command_line(tmp_path, capsys):
    for words in (["describe", "tiny/base"], ["diff", "tiny/base", "tiny/base", "num_key_value_heads=1"]):
        plot = tmp_path / f"{words[0]}.png"
        with pytest.raises(SystemExit) as stop:
            cli.main([*words, "--plot", str(plot), "--json"])
        assert stop.value.code == 0 and plot.read_bytes()[:4] == b"\x89PNG"
        assert json.loads(capsys.readouterr().out)["by_length"]
