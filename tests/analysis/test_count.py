"""B61: FLOPs of training and decoding equal the operations that torch counts, for every toggle; `count` and its command."""

import json
from contextlib import nullcontext

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop, sdpa_flop

from hf_variants import VariantsConfig, VariantsForCausalLM, cli
from hf_variants.analysis import count, flops_per_token
from hf_variants.analysis.flops import visible_keys_of_last, visible_pairs
from tests.analysis.measured import counted
from tests.variants import ENCODERS, MLA, TOGGLES, build, tiny

LENGTH = 12


def eager(name):
    """The tiny model on the backends whose products torch's counter sees, all of them: eager attention, eager experts."""
    config = tiny(name)
    model = build(config)
    model.set_attn_implementation("eager")
    if config.has_experts:
        model.set_experts_implementation("eager")
    return config, model


def _sweep():
    """Every toggle; those that cost what one before them costs are slow."""
    seen = set()
    for name in [*TOGGLES, *ENCODERS]:
        config = tiny(name)
        costs = tuple(flops_per_token(config, LENGTH, mode, "all").total for mode in ("prefill", "decode"))
        yield pytest.param(name, marks=[pytest.mark.slow] if costs in seen else [])
        seen.add(costs)


@pytest.mark.parametrize("name", list(_sweep()))
def test_forward_backward_and_decoding_equal_the_counted_operations(name):
    config, model = eager(name)
    ids = torch.randint(1, config.vocab_size, (1, LENGTH))
    row = count(config, LENGTH, pairs="all")["flops"][0]
    # with a cache a short prompt of latent attention is absorbed, see below
    options = {"use_cache": False} if config.is_causal else {}
    forward, out = counted(lambda: model(ids, **options))
    assert forward == pytest.approx(LENGTH * row["forward"], rel=1e-9)
    backward, _ = counted(lambda: out.logits.square().sum().backward())
    assert backward == pytest.approx(LENGTH * row["backward"], rel=1e-9)
    if not config.is_causal:
        assert row["decode"] is None
        return
    with torch.no_grad():
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        decoding, _ = counted(lambda: model(ids[:, -1:], past_key_values=cache))
    assert decoding == pytest.approx(row["decode"], rel=1e-9)


REACH = ["gqa", "sliding", "alternating", "chunked", "chunked_alternating", "mla_sliding", "mla_chunked", "modernbert", "bert"]


@pytest.mark.parametrize("name", REACH)
def test_visible_pairs_are_those_of_the_models_own_masks(name):
    config, model = eager(name)
    shown = {}
    for layer in model.base_model.layers:
        kernel = layer.self_attn.forward

        def forward(hidden_states, attention_mask=None, kernel=kernel, index=layer.self_attn.layer_idx, **kwargs):
            out, weights = kernel(hidden_states, attention_mask=attention_mask, **kwargs)
            shown[index] = int((weights[0, 0] > 0).sum())
            return out, weights

        layer.self_attn.forward = forward
    with torch.no_grad():
        ids = torch.randint(1, config.vocab_size, (1, LENGTH))
        model(ids, **({"use_cache": False} if config.is_causal else {}))
        assert [shown[plan.index] for plan in config.layer_plan()] == [
            visible_pairs(plan, LENGTH, config.is_causal) for plan in config.layer_plan()
        ]
        if config.is_causal:
            cache = model(ids[:, :-1], use_cache=True).past_key_values
            model(ids[:, -1:], past_key_values=cache)
            assert [shown[plan.index] for plan in config.layer_plan()] == [
                visible_keys_of_last(plan, LENGTH, True) for plan in config.layer_plan()
            ]


def cpu_kernels(counter):
    """Torch's own counter of the fused kernels, for the names that they have on a CPU; and without its hooks on modules, which
    would turn the lean forms of a training step off."""
    names = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter.flop_registry[names] = lambda q, k, v, *_, out_val=None, **__: sdpa_flop(q, k, v)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    counter.flop_registry[backward] = lambda grad, q, k, v, *_, out_val=None, **__: sdpa_backward_flop(grad, q, k, v)
    counter.mod_tracker = nullcontext()
    counter.mod_tracker.parents = {"Global"}
    return counter


@pytest.mark.parametrize("name", ["gqa", "mqa", "tied", "gated_bias", "plain", "moe", "moe_shared", "mla_q_lora", "sandwich"])
def test_a_training_step_on_the_fast_paths_costs_what_is_counted(name):
    """Chunked loss, lean feed-forwards and norms repeat no product; the fused kernel takes its scores once more."""
    config = tiny(name, **({"v_head_dim": 14} if name.startswith("mla") else {}))
    model = build(config).train()
    model.config._experts_implementation = "eager"
    ids = torch.randint(1, config.vocab_size, (1, LENGTH))
    counter = cpu_kernels(FlopCounterMode(display=False))
    with counter:
        model(ids, labels=ids).loss.backward()
    row = count(config, LENGTH, pairs="all")["flops"][0]
    scores = row["parts"]["attention_scores"]["forward"]
    recomputed = scores / 2
    assert counter.get_total_flops() == pytest.approx(LENGTH * (row["training"] + recomputed), rel=0.01)


def test_activation_checkpointing_runs_the_layers_again():
    config = tiny("gqa")
    model = build(config).train()
    model.set_attn_implementation("eager")
    ids = torch.randint(1, config.vocab_size, (1, LENGTH))
    # the other form stops before a layer's last product where nobody needs it
    model.gradient_checkpointing_enable({"use_reentrant": True})
    flops, _ = counted(lambda: model(ids, use_cache=False).logits.square().sum().backward())
    assert flops == pytest.approx(LENGTH * count(config, LENGTH, pairs="all", checkpointing=True)["flops"][0]["training"])


def test_both_forms_of_latent_attention():
    config = tiny("mla_q_lora")
    model = build(config)
    model.set_attn_implementation("eager")
    ids = torch.randint(1, config.vocab_size, (1, LENGTH))
    row = count(config, LENGTH, pairs="all")["flops"][0]
    with torch.no_grad():
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        for layer in model.base_model.layers:
            layer.self_attn.absorb_up_to = 0
        expanded, _ = counted(lambda: model(ids[:, -1:], past_key_values=cache))
        for layer in model.base_model.layers:
            layer.self_attn.absorb_up_to = LENGTH
        absorbed, _ = counted(lambda: model(ids, use_cache=True))
    assert expanded == row["decode_expanded"] > row["decode"]
    assert absorbed == LENGTH * flops_per_token(config, LENGTH, pairs="all", latent="absorbed").total


def test_windows_and_grouped_heads_are_not_forgotten():
    window = VariantsConfig.from_preset("mistral-7b")
    full = VariantsConfig.from_preset("mistral-7b", sliding_window=None, layer_types=None)
    a, b = (count(config, 32768)["flops"][0]["parts"]["attention_scores"]["forward"] for config in (window, full))
    # 4096 of on average 16384 keys, and fewer in the first window
    assert a / b == pytest.approx((4096 - 4096**2 / 2 / 32768) / 16384, rel=1e-3)


def test_facts_are_plain_data_and_agree_with_themselves():
    for name in ("gqa", "moe_bias_balance", "mla", "tied", "bert"):
        facts = count(tiny(name), [8, 4, 8], checkpointing=True)
        assert json.loads(json.dumps(facts)) == facts
        assert [row["length"] for row in facts["flops"]] == [4, 8]
        for row in facts["flops"]:
            assert row["training"] == pytest.approx(sum(sum(part.values()) for part in row["parts"].values()))
            assert row["backward"] == 2 * row["forward"] and row["training"] > row["forward"] + row["backward"]
            assert (row["decode_expanded"] is None) == (name != "mla")
        assert facts["parameters"]["tied"] == (name in ("tied", "bert"))


@pytest.mark.parametrize(
    "lengths, options, match",
    [
        (0, {}, "length=0 must be a whole number"),
        ([4, -1], {}, "length=-1"),
        ([], {}, "names no length"),
        (4.5, {}, "length=4.5"),
        (True, {}, "length=True"),
        (4, {"pairs": "some"}, "pairs='some' is unknown; choose from"),
    ],
)
def test_what_cannot_be_counted(lengths, options, match):
    with pytest.raises(ValueError, match=match):
        count(VariantsConfig(**{"vocab_size": 8, "hidden_size": 8, "num_attention_heads": 2}), lengths, **options)
    with pytest.raises(ValueError, match="latent='both' is unknown"):
        flops_per_token(tiny("gqa", **MLA), 4, latent="both")


def command(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        cli.main(["count", *words])
    printed = capsys.readouterr()
    return stop.value.code, printed.out, " ".join(printed.err.split())


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}


def test_command_line(tmp_path, capsys, monkeypatch):
    plot = tmp_path / "count.png"
    code, out, _ = command(capsys, "deepseek-v3", "--length", "4096", "--json", "--plot", str(plot))
    facts = json.loads(out)
    assert code == 0 and plot.read_bytes()[:4] == b"\x89PNG"
    assert facts == count("deepseek-v3", 4096)
    code, out, _ = command(capsys, "llama-3-8b", "num_key_value_heads=32", "--checkpointing", "--length", "64")
    assert code == 0 and "recomputed" in out and "lm head" in out
    (tmp_path / "native.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    code, out, _ = command(capsys, str(tmp_path / "native.json"), "--json", "--length", "8")
    assert code == 0 and json.loads(out)["parameters"]["total"] > 0
    for words, text in (
        (["llama-3-8b", "--length", "-4"], "length=-4"),
        (["llama-3-8b", "hidden_siz=4"], "did you mean 'hidden_size'"),
        (["llama-3-8b", "--plot", str(tmp_path / "no" / "x.png")], "does not exist"),
        (["lama-3-8b"], "lama-3-8b"),
    ):
        code, _, err = command(capsys, *words)
        assert code == 2 and text in err, err
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    code, _, err = command(capsys, "llama-3-8b", "--plot", str(plot))
    assert code == 2 and "needs matplotlib" in err


def test_the_model_is_not_built(monkeypatch):
    monkeypatch.setattr(VariantsForCausalLM, "__init__", lambda *_: pytest.fail("a model was built"))
    assert count("llama-3-8b", 16)["parameters"]["total"] == 8_030_261_248
