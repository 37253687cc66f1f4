"""Perplexity of a text without end: against a plain forward, however it is cut, and from the command line."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from hf_variants.evaluation.streaming import stream_edges, stream_perplexity
from tests.variants import build, draw_ids, tiny


@pytest.fixture(scope="module")
def model():
    return build(tiny("gqa"))


def test_equal_to_a_plain_forward_while_everything_fits(model):
    ids = draw_ids(1, 41)[0]
    with torch.no_grad():
        expected = cross_entropy(model(ids[None, :-1]).logits[0], ids[1:], reduction="none")
    found = stream_perplexity(model, ids, 4, 50, tokens_per_call=7)
    assert np.abs(found.losses - expected.double().numpy()).max() < 1e-5
    assert found.to_dict([0, 40])["perplexity"] == pytest.approx(float(expected.mean().exp()), rel=1e-5)
    # 2 layers, keys and values, 2 heads of 12 numbers of 4 bytes, for the 40 tokens read
    assert found.cache_bytes == 2 * 2 * 2 * 12 * 4 * 40


def test_calls_do_not_matter_and_memory_is_bounded(model):
    ids, seen = draw_ids(1, 61)[0], []
    one = stream_perplexity(model, ids, 2, 6, tokens_per_call=1)
    for size in (5, 60, 256):
        other = stream_perplexity(model, ids, 2, 6, size, progress=lambda done, total: seen.append((done, total)))
        assert np.abs(other.losses - one.losses).max() < 1e-5
    assert seen[-1] == (60, 60) and len(one.losses) == 60
    assert one.cache_bytes == 2 * 2 * 2 * 12 * 4 * 7
    alone = stream_perplexity(model, ids, 0, 8)
    assert np.abs(alone.losses[:7] - one.losses[:7]).max() < 1e-5 < np.abs(alone.losses[8:] - one.losses[8:]).max()
    assert (one.name, alone.name) == ("first 2 + latest 6", "latest 8")


def test_edges():
    assert stream_edges(20, 4, 2) == [0, 4, 12, 20] and stream_edges(3, 8) == [0, 3]


def test_refusals(model):
    with pytest.raises(ValueError, match="at least 2"):
        stream_perplexity(model, torch.tensor([3]), 1, 4)
    with pytest.raises(ValueError, match="tokens_per_call=0"):
        stream_perplexity(model, torch.tensor([3, 4]), 1, 4, tokens_per_call=0)


def test_the_command(tmp_path, capsys):
    from hf_variants.cli import app
    from tests.tokenizers_for_tests import byte_level_bpe

    model, tokenizer = build(tiny("gqa", vocab_size=340)), byte_level_bpe()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("in the beginning was the word. " * 8)
    common = ["stream", str(tmp_path / "model"), "--text", str(tmp_path / "text.txt")]

    def run(*words):
        with pytest.raises(SystemExit) as end:
            app.run([*common, *words])
        return end.value.code, capsys.readouterr()

    code, said = run(
        "--tokens", "60", "--capacity", "12", "--sinks", "0", "--sinks", "3", "--json", "--plot", str(tmp_path / "a.png")
    )
    assert code == 0, said.err
    streams = json.loads(said.out)["streams"]
    assert [(one["num_sink_tokens"], one["window"], one["tokens"]) for one in streams] == [(0, 12, 60), (3, 9, 60)]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    head = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    text = (tmp_path / "text.txt").read_text()
    ids = torch.tensor((head + tokenizer(text, add_special_tokens=False)["input_ids"])[:61])
    again = stream_perplexity(model, ids, 3, 9)
    assert streams[1]["loss"] == pytest.approx(again.losses.mean(), abs=1e-5)
    for words, part in (
        (("--sinks", "12", "--capacity", "12"), "--sinks 12 must be at least 0 and less than --capacity 12"),
        (("--tokens", "9999", "--capacity", "12"), "tokens to predict, less than --tokens 9,999"),
        (("--sinks", "1", "--sinks", "1", "--capacity", "12"), "names a cache twice"),
        (("--plot", "a.gif", "--capacity", "12"), "choose from .png"),
    ):
        code, said = run(*words)
        assert code == 2 and part in said.err.replace("\n", " "), said.err
