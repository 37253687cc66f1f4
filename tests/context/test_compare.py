"""Perplexity by position counts every token once, where it stands, and extension runs from checkpoint to checkpoint."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.context import compare_scalings, perplexity_by_position
from hf_variants.context.compare import bucket_ends


def tiny_model(**keys):
    base = {"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = VariantsConfig(**{**base, "max_position_embeddings": 16, **keys})
    model = VariantsForCausalLM(config)
    # Wide weights, so that positions matter without training.
    for parameter in model.parameters():
        parameter.data.mul_(8)
    return model


def test_buckets_hold_the_losses_of_their_positions():
    model, ids = tiny_model().eval(), torch.randint(50, (3, 16))
    buckets = perplexity_by_position(model, ids, [4, 5, 16], batch_size=2)
    assert [bucket["tokens"] for bucket in buckets] == [9, 3, 33]
    logits = model(ids).logits
    for bucket, positions in zip(buckets, (range(1, 4), range(4, 5), range(5, 16)), strict=True):
        losses = [cross_entropy(logits[:, index - 1], ids[:, index], reduction="none") for index in positions]
        expected = torch.stack(losses).mean().item()
        assert bucket["loss"] == pytest.approx(expected, abs=1e-5)
        assert bucket["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)


def test_methods_share_rows_and_weights():
    model, ids = tiny_model().train(), torch.randint(50, (2, 64))
    results = compare_scalings(model, ids, ("none", "linear", "yarn"), 4, [16, 32, 64])
    assert model.training and model.config.max_position_embeddings == 16
    assert {tuple(bucket["end"] for bucket in buckets) for buckets in results.values()} == {(16, 32, 64)}
    again = compare_scalings(model, ids, ("yarn",), 4, [16, 32, 64])
    assert again["yarn"] == results["yarn"] and results["yarn"] != results["linear"]


def test_no_scaling_equals_the_model_within_its_context():
    model, ids = tiny_model(), torch.randint(50, (2, 16))
    assert compare_scalings(model, ids, ("none",), 4)["none"] == perplexity_by_position(model, ids)


def test_bucket_ends_double():
    assert bucket_ends(1024) == [64, 128, 256, 512, 1024]
    assert bucket_ends(100) == [64, 100] and bucket_ends(50) == [50]


@pytest.mark.parametrize("lengths", [[], [8, 4], [1, 8], [8, 17], [4, 4]])
def test_bad_buckets_are_refused(lengths):
    with pytest.raises(ValueError, match="must ascend from at least 2 to at most 16"):
        perplexity_by_position(tiny_model(), torch.zeros(1, 16, dtype=torch.long), lengths)


def test_bad_rows_are_refused():
    with pytest.raises(ValueError, match="beyond max_position_embeddings=16"):
        perplexity_by_position(tiny_model(), torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(ValueError, match="must be \\[rows, T\\]"):
        perplexity_by_position(tiny_model(), torch.zeros(17, dtype=torch.long))
