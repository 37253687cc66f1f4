"""Key-value heads: copies are exact, merged heads are exact where the heads agree, and best otherwise."""

import json

import pytest
import torch

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.analysis import kv_cache_size
from hf_variants.surgery import kv_heads
from hf_variants.surgery.head_tensors import read_heads, reorder, write_heads
from hf_variants.surgery.kv_heads import rotary_pairs

BASE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
TOGGLES = {
    "plain": {},
    "interleaved": {"rope_interleaved": True},
    "partial": {"head_dim": 8, "partial_rotary_factor": 0.5},
    "biases": {"attention_bias": True},
    "no positions": {"position_embedding_type": "none"},
    "learned": {"position_embedding_type": "learned"},
    "some layers unturned": {"no_rope_layers": [1, 0]},
    "sinks": {"attention_sinks": True},
    "soft-cap": {"attn_logit_softcapping": 20.0},
    "window": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5},
    "gate by head": {"attn_output_gate": "head"},
    "wide heads": {"head_dim": 12},
}
MORE = {
    **TOGGLES,
    "alibi": {"position_embedding_type": "alibi"},
    "norm by head": {"qk_norm": "head"},
    "norm per head": {"qk_norm": "per_head"},
    "norm of all": {"qk_norm": "full"},
    "clip": {"clip_qkv": 0.8},
    "gate by channel": {"attn_output_gate": "channel"},
    "tied": {"tie_word_embeddings": True},
}
IDS = torch.randint(61, (2, 12), generator=torch.Generator().manual_seed(0))


def build(**keys):
    torch.manual_seed(0)
    model = VariantsForCausalLM(VariantsConfig(**{**BASE, **keys})).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases away from their starts
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def tie_groups(model, groups):
    """Make the heads of each group differ only by what a query head can absorb: scaled turns of keys, mixes of values."""
    for layer in model.model.layers:
        heads = read_heads(layer.self_attn)
        size = len(heads.key) // groups
        generator = torch.Generator().manual_seed(3)
        turned = set()
        base = heads.key[::size].clone()
        for real, imaginary in rotary_pairs(layer.self_attn):
            turned |= {real, imaginary}
            factors = torch.randn(len(heads.key), 1, 2, generator=generator, dtype=torch.float64)
            pair = torch.complex(base[:, real], base[:, imaginary]).repeat_interleave(size, 0)
            pair = torch.view_as_complex(factors) * pair
            heads.key[:, real], heads.key[:, imaginary] = pair.real, pair.imag
        rest = [channel for channel in range(heads.key.shape[1]) if channel not in turned]
        mix = torch.randn(len(heads.key), len(rest), len(rest), generator=generator, dtype=torch.float64)
        heads.key[:, rest] = mix @ base[:, rest].repeat_interleave(size, 0)
        width = heads.value.shape[1]
        mix = torch.randn(len(heads.key), width, width, generator=generator, dtype=torch.float64) / width**0.5
        heads.value[:] = mix @ heads.value[::size].repeat_interleave(size, 0)
        write_heads(layer.self_attn, heads)


@pytest.mark.parametrize("name", MORE)
def test_more_heads_compute_the_same(name):
    model = build(**MORE[name])
    more, report = kv_heads(model, 8)
    assert more.config.num_key_value_heads == 8 and report.exact and report.method == "duplicate"
    torch.testing.assert_close(logits(more), logits(model), atol=1e-5, rtol=0)
    before, after = report.kv_bytes_per_token
    assert (before, after) == (kv_cache_size(model.config, 1).per_token, 2 * before)


@pytest.mark.parametrize("method", ["mean", "first"])
@pytest.mark.parametrize("name", MORE)
def test_copies_merge_back_bitwise(name, method):
    model = build(**MORE[name])
    back, report = kv_heads(kv_heads(model, 8)[0], 4, method)
    assert max(layer["key_error"] for layer in report.layers) < 1e-7 and not report.exact
    for (key, own), (_, other) in zip(model.state_dict().items(), back.state_dict().items(), strict=True):
        assert torch.equal(own, other), key


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("name", TOGGLES)
def test_svd_is_exact_where_queries_and_outputs_can_absorb_the_difference(name, heads):
    model = build(**TOGGLES[name])
    tie_groups(model, heads)
    fewer, report = kv_heads(model, heads, "svd")
    assert max(max(layer["key_error"], layer["value_error"]) for layer in report.layers) < 1e-5
    expected = logits(model)
    torch.testing.assert_close(logits(fewer), expected, atol=2e-5 * float(expected.abs().max()), rtol=0)
    assert report.kv_bytes_per_token[1] * 4 == report.kv_bytes_per_token[0] * heads
    worse, rough = kv_heads(model, heads, "mean")
    assert rough.layers[0]["key_error"] > 0.1 and (logits(worse) - expected).abs().max() > 0.01


@pytest.mark.parametrize("name", TOGGLES)
def test_svd_has_the_least_error_of_the_weights(name):
    model = build(**TOGGLES[name])
    errors = {method: kv_heads(model, 2, method)[1].layers for method in ("mean", "first", "svd")}
    for index in range(2):
        for kind in ("key_error", "value_error"):
            assert errors["svd"][index][kind] < errors["mean"][index][kind] < errors["first"][index][kind]


@pytest.mark.parametrize("name", ["plain", "biases", "interleaved", "no positions"])
def test_calibrated_svd_has_the_least_error_of_keys_and_values(name):
    """What is reported is the error of keys and values on the text, measured here on the model's own activations."""
    model = build(**TOGGLES[name])
    seen = []
    hook = model.model.layers[1].self_attn.k_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    logits(model)
    hook.remove()
    keys = model.model.layers[1].self_attn.k_proj(seen[0]).detach()
    errors = {}
    for method, calibration in (("svd", [IDS]), ("mean", [IDS]), ("svd", None)):
        fewer, report = kv_heads(model, 2, method, calibration=calibration)
        errors[method, calibration is None] = report.layers[1]
        assert report.weighed == (calibration is not None)
    own = kv_heads(model, 2, "mean", calibration=[IDS])[0].model.layers[1].self_attn.k_proj(seen[0]).detach()
    seen_keys = own.unflatten(-1, (2, -1)).repeat_interleave(2, -2).flatten(-2)
    assert errors["mean", False]["key_error"] == pytest.approx(float((seen_keys - keys).norm() / keys.norm()), rel=1e-2)
    for kind in ("key_error", "value_error"):
        assert errors["svd", False][kind] < errors["mean", False][kind]
        assert errors["svd", False][kind] != errors["svd", True][kind]


def test_calibration_without_tokens_is_refused():
    with pytest.raises(ValueError, match="holds no token"):
        kv_heads(build(), 2, "svd", calibration=[])


@pytest.mark.parametrize("name", [name for name in MORE if name != "alibi"])
def test_heads_in_another_order_compute_the_same(name):
    model = build(**MORE[name])
    expected = logits(model)
    for layer in model.model.layers:
        write_heads(layer.self_attn, reorder(read_heads(layer.self_attn), [2, 0, 3, 1]))
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=0)


def test_similar_heads_find_each_other():
    model = build()
    for layer in model.model.layers:
        heads = read_heads(layer.self_attn)
        heads.key[2], heads.value[2] = heads.key[0], heads.value[0]
        heads.key[3], heads.value[3] = heads.key[1], heads.value[1]
        write_heads(layer.self_attn, heads)
    fewer, report = kv_heads(model, 2, "mean", order="similar")
    assert all(sorted(map(sorted, (layer["order"][:2], layer["order"][2:]))) == [[0, 2], [1, 3]] for layer in report.layers)
    torch.testing.assert_close(logits(fewer), logits(model), atol=1e-5, rtol=1e-4)


def test_the_result_saves_reloads_generates_and_leaves_the_source_alone(tmp_path):
    model = build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fewer, _ = kv_heads(model, 1, "svd")
    fewer.save_pretrained(tmp_path)
    again = VariantsForCausalLM.from_pretrained(tmp_path)
    assert again.config.num_key_value_heads == 1 and torch.equal(logits(again), logits(fewer))
    cache = again(IDS, use_cache=True).past_key_values
    assert cache.layers[0].keys.shape[1] == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.config.num_key_value_heads == 4


def test_dtype_is_kept():
    fewer, _ = kv_heads(build().bfloat16(), 2)
    assert {parameter.dtype for parameter in fewer.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    "keys, heads, extra, match",
    [
        ({}, 3, {}, r"choose from \[1, 2, 4, 8\]"),
        ({}, 0, {}, "num_key_value_heads=0"),
        ({}, True, {}, "num_key_value_heads=True"),
        ({}, 2, {"method": "pca"}, r"choose from \['first', 'mean', 'svd'\]"),
        ({}, 2, {"order": "random"}, "order='random'"),
        ({}, 8, {"method": "svd"}, "method='svd' says how heads are merged, but 4 key-value heads become 8"),
        ({}, 8, {"order": "similar"}, "order='similar' says how heads are merged"),
        ({}, 8, {"calibration": [IDS]}, "calibration=True says how heads are merged"),
        ({"position_embedding_type": "alibi"}, 2, {"order": "similar"}, "alibi"),
        ({"qk_norm": "head"}, 2, {"method": "svd"}, "qk_norm='head'"),
        ({"clip_qkv": 1.0}, 2, {"method": "svd"}, "clip_qkv=1.0"),
        ({"attn_output_gate": "channel"}, 2, {"method": "svd"}, "attn_output_gate='channel'"),
    ],
)
def test_what_cannot_be_merged_is_refused(keys, heads, extra, match):
    with pytest.raises(ValueError, match=match):
        kv_heads(build(**keys), heads, **extra)


def test_latent_attention_is_refused():
    mla = {"attention_type": "mla", "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
    model = VariantsForCausalLM(VariantsConfig(**{**BASE, "num_key_value_heads": 8, **mla}))
    with pytest.raises(ValueError, match="attention_type='mla' has no key-value heads"):
        kv_heads(model, 4)


def test_the_figure_shows_the_errors_of_the_report(monkeypatch):
    from matplotlib.figure import Figure

    from hf_variants.report import kv_heads_plot

    axes = Figure().subplots()
    monkeypatch.setattr(kv_heads_plot, "save_plot", lambda draw, path: draw(axes))
    layers = [{"key_error": 0.25, "value_error": 0.5}, {"key_error": 0.125, "value_error": 0.75}]
    facts = {"before": 4, "after": 2, "method": "svd", "weighed": True, "layers": layers}
    kv_heads_plot.plot_kv_heads(facts, "heads.png", title="model")
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
    assert heights == {"keys": [0.25, 0.125], "values": [0.5, 0.75]}
    assert axes.get_title() == "model: 4 to 2 key-value heads, svd, on text"


def test_command_line_changes_a_native_checkpoint(tmp_path, capsys):
    from transformers import LlamaConfig, LlamaForCausalLM

    from hf_variants import cli
    from hf_variants.training.specs import TokenizerSpec
    from hf_variants.training.tokenizer import train_tokenizer

    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"verse {i}: the light shines in the darkness, {i}" for i in range(60)))
    tokenizer = train_tokenizer([text.read_text()], TokenizerSpec(vocab_size=280))
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=280, max_position_embeddings=64, **sizes)).save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    words = ["kv-heads", str(tmp_path / "llama"), str(tmp_path / "gqa"), "--heads"]
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "3"])
    assert stop.value.code == 2 and "choose from [1, 2, 4]" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "gqa").exists()
    with pytest.raises(SystemExit) as stop:
        cli.main(
            [
                *words,
                "2",
                "--method",
                "svd",
                "--text",
                str(text),
                "--calibration",
                str(text),
                "--window",
                "64",
                "--max-tokens",
                "400",
            ]
        )
    out = capsys.readouterr().out
    assert stop.value.code == 0 and "perplexity" in out and "KV bytes per token" in out
    model = VariantsForCausalLM.from_pretrained(tmp_path / "gqa")
    assert model.config.num_key_value_heads == 2
    assert {"kv_heads_report.json", "tokenizer.json", "README.md"} <= {path.name for path in (tmp_path / "gqa").iterdir()}
    figure = tmp_path / "heads.png"
    with pytest.raises(SystemExit) as stop:
        cli.main([*words[:2], str(tmp_path / "mqa"), "--heads", "1", "--plot", str(figure), "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert stop.value.code == 0 and figure.read_bytes()[:4] == b"\x89PNG"
    assert facts == json.loads((tmp_path / "mqa" / "kv_heads_report.json").read_text()) and len(facts["layers"]) == 2
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "1"])
    assert stop.value.code == 2 and "is not empty" in capsys.readouterr().err.replace("\n", " ")
