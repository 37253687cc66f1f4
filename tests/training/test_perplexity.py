"""Perplexity against a loop that predicts one token at a time, and the unigram baseline against counts by hand."""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_variants.evaluation.baseline import token_counts, unigram_perplexity
from hf_variants.evaluation.perplexity import check_window, corpus_perplexity, position_edges
from hf_variants.training.specs import TokenizerSpec
from hf_variants.training.tokenizer import train_tokenizer

TEXTS = [
    "In the beginning God created the heaven and the earth.",
    "你好，世界 🎉 and then some more English words to fill the window.",
    "short",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 3, TokenizerSpec(vocab_size=280))


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def by_hand(model, tokenizer, window, stride):
    """(nll per scored token, tokens read before it) of every document, one forward per token."""
    records = []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        for target in range(1, len(ids)):
            begin = 0
            while target >= begin + window:
                begin += stride
            logits = model(torch.tensor([ids[begin:target]])).logits[0, -1].double()
            records.append((-logits.log_softmax(-1)[ids[target]].item(), target - begin))
    return records


@pytest.mark.parametrize("stride", [None, 4, 1])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_every_token_is_scored_once(model, tokenizer, stride, batch_size):
    expected = by_hand(model, tokenizer, 16, stride or 15)
    measured = corpus_perplexity(model, tokenizer, TEXTS, window=16, stride=stride, batch_size=batch_size)
    assert measured.tokens == len(expected) == sum(len(tokenizer(text)["input_ids"]) - 1 for text in TEXTS)
    assert measured.nll == pytest.approx(sum(nll for nll, _ in expected), rel=1e-5)
    assert measured.perplexity == pytest.approx(math.exp(measured.nll / measured.tokens))
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert measured.num_bytes == num_bytes
    assert measured.bits_per_byte == pytest.approx(measured.nll / math.log(2) / num_bytes)
    counts = np.bincount([position for _, position in expected], minlength=16)
    assert measured.position_count.tolist() == counts.tolist()


def test_buckets_of_positions(model, tokenizer):
    expected = by_hand(model, tokenizer, 16, 15)
    measured = corpus_perplexity(model, tokenizer, TEXTS, window=16)
    edges = position_edges(16, 4)
    assert edges == [1, 4, 8, 12, 16]
    for bucket in measured.by_position(edges):
        inside = [nll for nll, position in expected if bucket["start"] <= position < bucket["end"]]
        assert bucket["tokens"] == len(inside)
        assert bucket["perplexity"] == pytest.approx(math.exp(sum(inside) / len(inside)), rel=1e-5)


def test_limits(model, tokenizer):
    whole = corpus_perplexity(model, tokenizer, TEXTS, window=16, only_full_windows=True)
    assert len(set(whole.position_count[1:].tolist())) == 1
    limited = corpus_perplexity(model, tokenizer, TEXTS, window=16, max_tokens=10, batch_size=1)
    assert limited.tokens == 15 and limited.num_bytes < len(TEXTS[0].encode())


def test_training_mode_is_left_as_it_was(model, tokenizer):
    model.train()
    first = corpus_perplexity(model, tokenizer, TEXTS)
    assert model.training
    model.eval()
    assert corpus_perplexity(model, tokenizer, TEXTS).nll == first.nll
    assert not model.training


def test_mistakes(model, tokenizer):
    for window, stride, message in ((1, None, "window=1 must be"), (8, 8, "stride=8 must lie in"), (8, 0, "stride=0")):
        with pytest.raises(ValueError, match=message):
            check_window(model, window, stride)
    with pytest.raises(ValueError, match="no token could be scored"):
        corpus_perplexity(model, tokenizer, ["a"], window=16, only_full_windows=True)


def test_evaluate_metric(model, tokenizer, tmp_path):
    from hf_variants.metrics import load_metric, metric_names

    assert "perplexity" in metric_names()
    metric = load_metric("perplexity", experiment_id="test", cache_dir=str(tmp_path))
    scores = metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer, window=16)
    assert scores == corpus_perplexity(model, tokenizer, TEXTS, window=16).to_dict()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    again = metric.compute(predictions=TEXTS, model_id=str(tmp_path / "model"), window=16)
    assert again["perplexity"] == pytest.approx(scores["perplexity"], rel=1e-6)
    with pytest.raises(ValueError, match="did you mean 'perplexity'"):
        load_metric("perplexty")
    with pytest.raises(ValueError, match="needs model_id, or both"):
        metric.compute(predictions=TEXTS)


def test_unigram_baseline():
    train = token_counts([np.array([0, 1, 1, 2, -100]), np.array([[1, 2]])], 4)
    assert train.tolist() == [1, 3, 2, 0]
    # smoothed frequencies 2/10, 4/10, 3/10, 1/10
    expected = math.exp(-(2 * math.log(0.4) + math.log(0.1)) / 3)
    assert unigram_perplexity(train, [0, 2, 0, 1]) == pytest.approx(expected)
    with pytest.raises(ValueError, match="equal shapes"):
        unigram_perplexity([1], [1, 2])
    with pytest.raises(ValueError, match="no token"):
        unigram_perplexity([1, 2], [0, 0])
