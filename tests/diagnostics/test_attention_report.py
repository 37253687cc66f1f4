"""Numbers about attention against values that are known in advance or computed another way."""

import json
import math

import pytest
import torch

from hf_variants import VariantsConfig, VariantsForCausalLM, cli
from hf_variants.diagnostics import attention_report, observe_attention
from tests import variants

BASE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
MLA = {
    "attention_type": "mla",
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
TOGGLES = {
    "plain": {},
    "mla": MLA,
    "alibi": {"position_embedding_type": "alibi"},
    "sinks": {"attention_sinks": True},
    "soft-cap": {"attn_logit_softcapping": 2.0},
    "window": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
    "encoder": {"is_causal": False},
    "qk-norm": {"qk_norm": "head"},
}
IDS = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(0))


def build(**keys):
    from hf_variants import VariantsModel

    torch.manual_seed(0)
    return VariantsModel(VariantsConfig(**{**BASE, **keys})).eval()


@pytest.mark.parametrize("name", TOGGLES)
def test_numbers_agree_with_the_weights_that_the_model_returns(name):
    model = build(**TOGGLES[name])
    report = attention_report(model, IDS, sink_tokens=2, keep_maps=True)
    assert model.config._attn_implementation == "sdpa" and len(report.heads) == 8
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(IDS, output_attentions=True).attentions
    for row in report.heads:
        weights = attentions[row["layer"]][:, row["head"]].double()
        torch.testing.assert_close(report.maps[row["layer"], row["head"]].double(), weights.mean(0), atol=1e-6, rtol=0)
        first = 0 if name == "encoder" else 1  # the first causal query has no choice
        assert row["sink_mass"] == pytest.approx(float(weights[:, first:, :2].sum(-1).mean()), abs=1e-6)
        share = weights / weights.sum(-1, keepdim=True)
        by_hand = torch.special.entr(share).sum(-1)[:, first:].mean()
        assert row["entropy"] == pytest.approx(float(by_hand), abs=1e-6)
        assert 0 <= row["entropy_share"] <= 1 + 1e-9 and row["entropy"] <= row["bound"] + 1e-9
        apart = (torch.arange(16)[:, None] - torch.arange(16)).abs()
        assert row["distance"] == pytest.approx(float((weights * apart).sum(-1)[:, first:].mean()), abs=1e-5)


def test_even_attention_reaches_its_bound_in_every_window():
    model = build(**TOGGLES["window"])
    for layer in model.layers:
        torch.nn.init.zeros_(layer.self_attn.q_proj.weight)
    report = attention_report(model, IDS)
    for row in report.heads:
        visible = [min(place + 1, 4 if row["layer"] == 0 else 16) for place in range(1, 16)]
        assert row["bound"] == pytest.approx(sum(map(math.log, visible)) / 15)
        assert row["entropy_share"] == pytest.approx(1) and row["max_logit"] == 0
        assert row["redundancy"] == pytest.approx(1)  # every head does the same


def test_soft_cap_shows_before_and_after():
    rows = attention_report(build(**TOGGLES["soft-cap"]), IDS).heads
    for row in rows:
        assert row["max_capped_logit"] == pytest.approx(2 * math.tanh(row["max_logit"] / 2), rel=1e-5)
    assert max(row["max_logit"] for row in rows) > 2


NORMED = {
    "head": {"qk_norm": "head"},
    "channels, after RoPE": {"qk_norm": "full", "qk_norm_after_rope": True},
    "latent": {**MLA, "qk_norm": "head"},
    "l2 of latents": {**MLA, "qk_norm": "l2"},
}


@pytest.mark.parametrize("name", NORMED)
def test_logits_without_a_norm_are_those_of_the_model_without_it(name):
    torch.manual_seed(1)
    normed, bare = build(**NORMED[name]), build(**{**NORMED[name], "qk_norm": "none", "qk_norm_after_rope": False})
    state = {key: tensor for key, tensor in normed.state_dict().items() if key in bare.state_dict()}
    assert len(state) == len(bare.state_dict())
    bare.load_state_dict(state)
    with torch.no_grad():
        before = normed(IDS).last_hidden_state
        found, expected = attention_report(normed, IDS).heads, attention_report(bare, IDS).heads
        assert torch.equal(normed(IDS).last_hidden_state, before)
    # states of later layers differ
    for one, other in zip(found[:4], expected[:4], strict=True):
        assert one["max_unnormed_logit"] == pytest.approx(other["max_logit"], rel=1e-5) != one["max_logit"]
    assert all(row["max_unnormed_logit"] == row["max_logit"] for row in expected)


@pytest.mark.parametrize("name", ["head", "channels, after RoPE"])
def test_watching_leaves_a_cache_as_it_is(name):
    model, seen = build(**NORMED[name]), []

    def decode():
        cache = model(IDS[:, :9]).past_key_values
        return model(IDS[:, 9:], past_key_values=cache).last_hidden_state

    with torch.no_grad():
        expected = decode()
        with observe_attention(model, seen.append):
            found = decode()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert [attention.weights.shape[-1] for attention in seen] == [9, 9, 16, 16]
    assert all(attention.unnormed is None for attention in seen)


@pytest.mark.parametrize("name", ["mla", "latent"])
def test_absorbed_attention_is_refused_rather_than_not_seen(name):
    model = build(**{**TOGGLES, **NORMED}[name])
    with (
        observe_attention(model, lambda seen: None),
        pytest.raises(ValueError, match="run the whole row with use_cache=False"),
    ):
        model(IDS)
    assert model(IDS).last_hidden_state.shape == (2, 16, 32)


def test_a_learned_sink_takes_what_keys_do_not():
    model = build(**TOGGLES["sinks"])
    for layer in model.layers:
        torch.nn.init.constant_(layer.self_attn.sinks, 30.0)
    assert min(row["learned_sink_mass"] for row in attention_report(model, IDS).heads) > 0.99
    assert max(row["learned_sink_mass"] for row in attention_report(build(), IDS).heads) < 1e-6


def test_logits_before_the_cap_are_the_scaled_products():
    model, seen = build(), {}
    with observe_attention(model, lambda attention: seen.setdefault(attention.layer, attention)), torch.no_grad():
        model(IDS, use_cache=False)
    for attention in seen.values():
        scores = attention.scores.masked_fill(~attention.visible, -torch.inf)
        torch.testing.assert_close(scores.softmax(-1), attention.weights, atol=1e-6, rtol=0)


def test_watching_ends_with_the_block_even_after_an_error():
    model, seen = build(), []
    with pytest.raises(RuntimeError), observe_attention(model, seen.append):
        raise RuntimeError
    model.set_attn_implementation("eager")
    model(IDS)
    assert seen == []


def test_other_models_are_not_counted():
    model, other, seen = build(), build(), []
    with observe_attention(model, seen.append):
        other.set_attn_implementation("eager")
        other(IDS)
    assert seen == []


@pytest.mark.parametrize(
    "ids, keywords, match",
    [(IDS[:, :1], {}, "at least 2 tokens"), (IDS[0], {}, "at least 2 tokens"), (IDS, {"sink_tokens": 16}, "sink_tokens=16")],
)
def test_inputs_that_say_nothing(ids, keywords, match):
    with pytest.raises(ValueError, match=match):
        attention_report(build(), ids, **keywords)


def test_a_foreign_model_is_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=61))
    with pytest.raises(ValueError, match="model_type='gpt2' is not of this family"):
        attention_report(model, IDS)


def test_table_and_figure_show_the_numbers_of_the_report(monkeypatch):
    from matplotlib.figure import Figure

    from hf_variants.cli.attention import _table
    from hf_variants.diagnostics import plots

    report = attention_report(build(qk_norm="head", attn_logit_softcapping=2.0), IDS)
    own = {layer: [row for row in report.heads if row["layer"] == layer] for layer in (0, 1)}
    cells = {column.header: list(column.cells) for column in _table(report).columns}
    for layer, rows in own.items():
        for name in ("entropy", "bound", "sink_mass", "distance"):
            assert cells[name.replace("_", " ")][layer] == f"{sum(row[name] for row in rows) / 4:.3f}"
        top, capped, before = (max(row[f"max_{what}logit"] for row in rows) for what in ("", "capped_", "unnormed_"))
        assert cells["max logit"][layer] == f"{top:.1f} (capped {capped:.1f}, without norm {before:.1f})"
        assert cells["most alike heads"][layer] == f"{max(row['redundancy'] for row in rows):.3f}"
    assert "learned sink mass" not in cells and "image mass" not in cells
    axes = Figure().subplots(1, 4)
    monkeypatch.setattr(plots, "save_plot", lambda draw, path, **layout: draw(list(axes)))
    plots.plot_heads(report, "heads.png")
    for axis, name in zip(axes, ("entropy_share", "sink_mass", "redundancy", "max_logit"), strict=True):
        assert axis.get_title() == plots.QUANTITIES[name]
        assert axis.images[0].get_array().tolist() == [[row[name] for row in rows] for rows in own.values()]


def test_command_line(tmp_path, capsys):
    from hf_variants.training.specs import TokenizerSpec
    from hf_variants.training.tokenizer import train_tokenizer

    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"verse {i}: the light shines in the darkness, {i}" for i in range(60)))
    tokenizer = train_tokenizer([text.read_text()], TokenizerSpec(vocab_size=280))
    VariantsForCausalLM(VariantsConfig(**{**BASE, "vocab_size": 280})).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    words = ["attention", str(tmp_path / "model"), "--text", str(text), "--rows", "2", "--length", "32"]
    for extra, name in (([], "heads.png"), (["--maps", "1"], "maps.png")):
        with pytest.raises(SystemExit) as stop:
            cli.main([*words, *extra, "--json", "--plot", str(tmp_path / name)])
        assert stop.value.code == 0 and (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
        assert len(json.loads(capsys.readouterr().out)["heads"]) == 8
    for extra, match in ((["--maps", "1"], "--plot"), (["--maps", "7", "--plot", str(tmp_path / "a.png")], "layers 0 to 1")):
        with pytest.raises(SystemExit) as stop:
            cli.main([*words, *extra])
        assert stop.value.code == 2 and match in capsys.readouterr().err.replace("\n", " ")


def test_a_pair_is_sent_to_the_function_for_several_kinds():
    pair = variants.build(variants.tiny_pair())
    with pytest.raises(ValueError, match=r"is an encoder-decoder, which has three kinds.*attention_reports\(model"):
        attention_report(pair, torch.zeros(1, 4, dtype=torch.long))
