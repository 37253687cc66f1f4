"""Cache profiles: what is counted is what a decoding model holds, kind by kind."""

import itertools
import json
import sys
import types

import pytest
import torch
from transformers.utils import is_optimum_quanto_available

from hf_variants import VariantsConfig, VariantsForCausalLM, cli
from hf_variants.evaluation import cache_profile
from hf_variants.evaluation.cache_perplexity import cache_perplexity
from hf_variants.evaluation.cache_profile import _Decoder, count_cache, measure_cache, measure_caches, quantized_cache

BASE = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "head_dim": 4,
    "max_position_embeddings": 64,
}
MLA = {
    "attention_type": "mla",
    "head_dim": None,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
}
TOGGLES = {
    "mha": {},
    "gqa": {"num_key_value_heads": 8},
    "mqa": {"num_key_value_heads": 1},
    "mla": MLA,
    "mla with norm": {**MLA, "qk_norm": "head"},
    "windows": {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 6},
    "chunks": {"layer_types": ["chunked_attention"] * 3 + ["full_attention"], "attention_chunk_size": 8},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", TOGGLES)
def test_predicted_bytes_are_the_measured_ones(name, dtype):
    config = VariantsConfig(**{**BASE, **TOGGLES[name]})
    profile = measure_cache(count_cache(name, config, 20, 2, dtype), config, new_tokens=2)
    assert profile.measured_bytes == profile.bytes == sum(row["bytes"] for row in profile.kinds)
    assert sum(row["layers"] for row in profile.kinds if "record" not in row["kind"]) == 4
    assert profile.tokens_per_second > 0 and profile.processor_ms_per_token > 0


@pytest.mark.parametrize("cache", ["static", "fp8"])
@pytest.mark.parametrize("name", TOGGLES)
def test_other_caches_hold_what_is_predicted(name, cache):
    config = VariantsConfig(**{**BASE, **TOGGLES[name]})
    if cache == "fp8" and name in ("windows", "chunks"):
        with pytest.raises(ValueError, match="cache='fp8' takes full attention alone, but layer_types has"):
            count_cache(name, config, 20, cache=cache)
        return
    for length in (4, 20):
        profile = count_cache(name, config, length, 2, torch.float32, cache)
        measure_cache(profile, config, new_tokens=2)
        assert profile.measured_bytes == profile.bytes == sum(row["bytes"] for row in profile.kinds)
        assert profile.tokens_per_second > 0


# attention kinds whose keys and values of a token are whole groups of 64 numbers
PACKED = {
    "mha": {},
    "gqa": {"num_key_value_heads": 16},
    "mqa": {"num_key_value_heads": 1, "num_attention_heads": 4, "head_dim": 64},
    "mla": {**MLA, "kv_lora_rank": 128, "qk_rope_head_dim": 64},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PACKED)
def test_packed_caches_hold_what_is_predicted(name, dtype):
    config = VariantsConfig(**{**BASE, **PACKED[name]})
    profile = measure_cache(count_cache(name, config, 20, 2, dtype, "hqq"), config, new_tokens=2)
    assert profile.measured_bytes == profile.bytes == sum(row["bytes"] for row in profile.kinds)
    width = 0.5 + 2 * dtype.itemsize / 64
    plain = count_cache(name, config, 20, 2, dtype).bytes / dtype.itemsize
    assert profile.bytes == plain * width and profile.bytes_per_token * 20 == profile.bytes


@pytest.mark.parametrize("name", PACKED)
def test_perplexity_is_read_from_the_cache(name):
    torch.manual_seed(0)
    model = VariantsForCausalLM(VariantsConfig(**{**BASE, **PACKED[name], "initializer_range": 0.3})).eval()
    ids = torch.randint(61, (41,))
    whole = model(input_ids=ids[None, :-1], use_cache=False).logits[0]
    expected = torch.nn.functional.cross_entropy(whole, ids[1:]).exp().item()
    for size in (1, 7, 40):
        assert cache_perplexity(model, ids, None, size) == pytest.approx(expected, rel=1e-4)
    packed = cache_perplexity(model, ids, quantized_cache("hqq", model.config), 8)
    assert packed != pytest.approx(expected, rel=1e-5) and packed == pytest.approx(expected, rel=0.3)
    # one call for everything never reads from the cache
    assert cache_perplexity(model, ids, quantized_cache("hqq", model.config), 40) == pytest.approx(expected, rel=1e-4)


@pytest.mark.skipif(not is_optimum_quanto_available(), reason="optimum-quanto is not installed")
def test_quanto_holds_what_is_predicted_and_is_read():
    for (name, keys), dtype in itertools.product(PACKED.items(), (torch.float32, torch.bfloat16)):
        config = VariantsConfig(**{**BASE, **keys})
        # an odd number of groups, and a single one
        for length, batch in ((20, 2), (21, 1), (1, 1)):
            profile = measure_cache(count_cache(name, config, length, batch, dtype, "quanto"), config, new_tokens=2)
            assert profile.measured_bytes == profile.bytes, (name, dtype, length)
        torch.manual_seed(0)
        model = VariantsForCausalLM(config).eval()
        ids = torch.randint(61, (41,))
        whole = cache_perplexity(model, ids, None, 8)
        packed = cache_perplexity(model, ids, quantized_cache("quanto", config), 8)
        assert packed != whole and packed == pytest.approx(whole, rel=0.3)


@pytest.mark.parametrize("odd", [0, 1])
def test_the_bytes_of_quanto_are_those_of_hqq_but_for_odd_groups(odd):
    config = VariantsConfig(**{**BASE, **PACKED["mqa"]})
    sizes = {kind: count_cache(kind, config, 20 + odd, 1, torch.bfloat16, kind).bytes for kind in ("hqq", "quanto")}
    # keys and values of every layer
    assert sizes["quanto"] - sizes["hqq"] == odd * 2 * config.num_hidden_layers * 32


def test_an_extension_that_cannot_be_compiled_is_said_with_what_it_needs(monkeypatch):
    def fail(*args):
        raise RuntimeError("Ninja is required to load C++ extensions")

    monkeypatch.setitem(sys.modules, "optimum", types.ModuleType("optimum"))
    monkeypatch.setitem(sys.modules, "optimum.quanto", types.ModuleType("optimum.quanto"))
    monkeypatch.setattr(cache_profile, "QuantizedCache", lambda kind, config: object())
    monkeypatch.setattr(torch.ops, "quanto", types.SimpleNamespace(unpack=fail))
    with pytest.raises(ValueError, match=r"needs a C\+\+ compiler, Python's headers and ninja in PATH \(Ninja is required"):
        quantized_cache("quanto", VariantsConfig(**BASE))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("transformers.cache_utils.is_optimum_quanto_available", lambda: False)
    with pytest.raises(ValueError, match=r"pip install 'hf-variants\[quanto-cache\]'"):
        quantized_cache("quanto", VariantsConfig(**BASE))
    monkeypatch.setattr("transformers.cache_utils.is_hqq_available", lambda: False)
    with pytest.raises(ValueError, match=r"pip install 'hf-variants\[quantized-cache\]'"):
        quantized_cache("hqq", VariantsConfig(**BASE))


def test_models_decode_by_turns(monkeypatch):
    order, decode = [], _Decoder.decode
    monkeypatch.setattr(_Decoder, "decode", lambda self, tokens: (order.append((self, tokens)), decode(self, tokens))[1])
    configs = [VariantsConfig(**{**BASE, **TOGGLES[name]}) for name in ("mha", "mqa")]
    profiles = [count_cache(str(index), config, 8) for index, config in enumerate(configs)]
    seen = []
    measure_caches(profiles, configs, new_tokens=9, tick=seen.append)
    assert seen == ["0", "1"]
    for profile in profiles:
        assert profile.measured_bytes == profile.bytes and profile.tokens_per_second > 0
        assert 0 < profile.processor_ms_per_token < 1000
    first, second = order[0][0], order[1][0]
    assert order == [(decoder, tokens) for tokens in (2, 2, 2, 3) for decoder in (first, second)] and first is not second
    # the first token warms up
    assert all(len(times) == 8 for one in (first, second) for times in (one.seconds, one.processor_seconds))


def test_the_figure_has_the_speeds_of_those_that_were_timed(monkeypatch):
    from matplotlib.figure import Figure

    from hf_variants.report import cache_plot

    drawn = []
    monkeypatch.setattr(cache_plot, "save_plot", lambda draw, path, width, columns: drawn.append((draw, columns)))
    profiles = [count_cache(name, VariantsConfig(**BASE), 8) for name in ("timed", "counted")]
    profiles[0].tokens_per_second, profiles[0].processor_ms_per_token = 20.0, 40.0
    cache_plot.plot_caches(profiles, "any.png")
    draw, columns = drawn[0]
    axes = list(Figure().subplots(1, columns))
    draw(axes)
    assert [label.get_text() for label in axes[1].get_xticklabels()] == ["timed"]
    assert sorted(bar.get_height() for bar in axes[1].patches) == [20.0, 25.0]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["gqa", "mla with norm", "windows"])
def test_what_cross_attention_keeps(name, cache):
    config = VariantsConfig(**{**BASE, **TOGGLES[name], "add_cross_attention": True, "cross_attention_hidden_size": 24})
    profile = count_cache(name, config, 12, 2, torch.float32, cache, encoder_length=9)
    measure_cache(profile, config, new_tokens=2)
    assert profile.measured_bytes == profile.bytes == sum(row["bytes"] for row in profile.kinds)
    assert [row["kind"] for row in profile.kinds if "cross" in row["kind"]] == ["cross, 9 states"]
    assert profile.tokens_per_second is None and profile.encoder_length == 9


@pytest.mark.parametrize(
    "keys, options, match",
    [
        ({"num_key_value_heads": 8}, {"cache": "quanto"}, "cache='quanto' packs groups of 64 numbers, but the keys"),
        ({"sliding_window": 4}, {"cache": "quanto"}, "cache='quanto' takes full attention alone"),
        ({"num_key_value_heads": 8}, {"cache": "hqq"}, "packs groups of 64 numbers, but the keys of a token are 32"),
        ({**MLA, "kv_lora_rank": 64}, {"cache": "hqq"}, "packs groups of 64 numbers, but the values of a token are 4"),
        ({"sliding_window": 4}, {"cache": "hqq"}, "cache='hqq' takes full attention alone"),
        ({}, {"cache": "paged"}, "cache='paged' is unknown; choose from"),
        ({}, {"encoder_length": 4}, "encoder_length=4 is what cross-attention keeps"),
        ({"add_cross_attention": True}, {"cache": "fp8"}, "has no cross-attention"),
        ({"add_cross_attention": True}, {"cache": "hqq"}, "cache='hqq' has no cross-attention"),
        ({"add_cross_attention": True}, {"encoder_length": -1}, "encoder_length=-1 must be at least 0"),
        ({"sliding_window": 4, **TOGGLES["dynamic"]}, {"cache": "static"}, "of sliding layers alone cannot record"),
    ],
)
def test_caches_that_are_refused(keys, options, match):
    with pytest.raises(ValueError, match=match):
        count_cache("it", VariantsConfig(**{**BASE, **keys}), 8, **options)


def test_the_exercise_mha_gqa_mqa_mla():
    profiles = {
        name: count_cache(name, VariantsConfig(**{**BASE, **TOGGLES[name]}), 40) for name in ("mha", "gqa", "mqa", "mla")
    }
    assert profiles["mha"].share_of_mha == 1
    assert profiles["gqa"].bytes * 4 == profiles["mha"].bytes and profiles["mqa"].bytes * 32 == profiles["mha"].bytes
    assert profiles["mla"].bytes_per_token == 4 * (8 + 4) * 2


def test_kinds_are_named():
    config = VariantsConfig(**{**BASE, **TOGGLES["windows"]})
    kinds = {row["kind"]: row for row in count_cache("windows", config, 40).kinds}
    assert kinds["window 6"]["layers"] == kinds["full"]["layers"] == 2
    assert kinds["window 6"]["bytes"] * 40 == kinds["full"]["bytes"] * 5


@pytest.mark.parametrize(
    "keys, length, match",
    [
        ({"is_causal": False}, 4, "is_causal=False has no key-value cache"),
        ({}, 0, "length=0"),
        ({}, 63, "max_position_embeddings=64"),
    ],
)
def test_what_cannot_be_profiled(keys, length, match):
    config = VariantsConfig(**{**BASE, **keys})
    with pytest.raises(ValueError, match=match):
        measure_cache(count_cache("it", config, length), config)


def command(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        cli.main(["profile-cache", *words])
    printed = capsys.readouterr()
    return stop.value.code, printed.out, " ".join(printed.err.split())


def test_command_line(tmp_path, capsys):
    (tmp_path / "mha.json").write_text(json.dumps(BASE))
    words = [str(tmp_path / "mha.json"), "--vary", "num_key_value_heads=8", "--length", "20", "--new-tokens", "2"]
    mixed = ["--vary", 'layer_types=["sliding_attention","full_attention","full_attention","full_attention"],sliding_window=4']
    code, out, _ = command(capsys, *words, *mixed, "--measure", "--json", "--plot", str(tmp_path / "caches.png"))
    profiles = json.loads(out)
    assert code == 0 and [profile["measured_bytes"] for profile in profiles] == [profile["bytes"] for profile in profiles]
    assert profiles[1]["share_of_mha"] == 0.25 and len(profiles[2]["kinds"]) == 2
    assert (tmp_path / "caches.png").read_bytes()[:4] == b"\x89PNG"
    code, out, _ = command(capsys, "llama-3-8b", "--vary", "num_key_value_heads=32")
    assert code == 0 and "25.0%" in out and "100.0%" in out
    code, _, err = command(capsys, "llama-3-8b", "--measure")
    assert code == 2 and "num_hidden_layers" in err
    code, _, err = command(capsys, "llama-3-8b", "--new-tokens", "4")
    assert code == 2 and "--measure alone" in err
    for number in ("0", "1", "-3"):
        code, _, err = command(capsys, words[0], "--measure", "--length", "8", "--new-tokens", number)
        assert code == 2 and f"new_tokens={number} must be at least 2" in err
    for kind in ("float8_e4m3fn", "float8_e5m2"):
        code, _, err = command(capsys, words[0], "--measure", "--length", "8", "--dtype", kind)
        assert code == 2 and f"no model runs in dtype='{kind}'" in err
    code, _, err = command(capsys, "llama-3-8b", "--dtype", "int8")
    assert code == 2 and "choose such as bfloat16" in err


def test_perplexity_of_a_checkpoint_on_the_command_line(tmp_path, capsys):
    from tests.tokenizers_for_tests import HARD_TEXTS, byte_level_bpe

    torch.manual_seed(0)
    byte_level_bpe().save_pretrained(tmp_path)
    VariantsForCausalLM(VariantsConfig(**{**BASE, "vocab_size": 330, "initializer_range": 0.3})).save_pretrained(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(HARD_TEXTS), encoding="utf-8")
    words = [str(tmp_path), "--text", str(tmp_path / "text.txt"), "--length", "50", "--dtype", "float32"]
    found = {}
    for cache in ("dynamic", "fp8"):
        code, out, _ = command(capsys, *words, "--cache", cache, "--json")
        found[cache] = json.loads(out)[0]
        assert code == 0 and found[cache]["perplexity_of_dynamic"] == pytest.approx(found["dynamic"]["perplexity"])
    assert found["fp8"]["perplexity"] != pytest.approx(found["dynamic"]["perplexity"], rel=1e-5)
    assert found["fp8"]["perplexity"] == pytest.approx(found["dynamic"]["perplexity"], rel=0.1)
    code, out, _ = command(capsys, *words, "--cache", "fp8")
    assert code == 0 and "dynamic" in out and "perplexi" in out
    code, _, err = command(capsys, *words, "--vary", "head_dim=4")
    assert code == 2 and "leave changes out" in err
