"""Counts from the config equal what published models and real tensors hold."""

import pytest
from published_configs import PUBLISHED

from hf_variants.analysis import count_parameters, describe, describe_text, flops_per_token, kv_cache_size
from hf_variants.analysis.flops import visible_keys_of_last, visible_pairs
from hf_variants.analysis.layer_pattern import spans
from hf_variants.presets import load_preset
from tests.analysis.small import tiny

EXACT = {name: count for name, (_, _, count) in PUBLISHED.items()}


@pytest.mark.parametrize("name", sorted(EXACT))
def test_presets_have_the_published_number_of_parameters(name):
    counts = count_parameters(load_preset(name))
    assert counts.total == EXACT[name]
    assert sum(counts.parts.values()) == counts.total and sum(counts.active_parts.values()) == counts.active


def test_published_buffers_and_active_shares():
    v3, mixtral = count_parameters(load_preset("deepseek-v3")), count_parameters(load_preset("mixtral-8x7b"))
    assert v3.total + v3.buffers == 671_026_419_200
    assert 37.4e9 < v3.active < 37.7e9
    assert round(mixtral.active / mixtral.total, 3) == 0.276
    assert mixtral.active_parts["experts"] / mixtral.parts["experts"] == 0.25


def test_a_tied_head_costs_products_but_no_parameters():
    tied, untied = tiny(tie_word_embeddings=True), tiny()
    assert count_parameters(untied).total - count_parameters(tied).total == 50 * 32
    assert flops_per_token(tied, 8).total == flops_per_token(untied, 8).total


def _brute_pairs(plan, length, causal):
    def sees(i, j):
        if causal and j > i:
            return False
        if plan.chunk is not None:
            return i // plan.chunk == j // plan.chunk
        if plan.window is None:
            return True
        return i - j < plan.window if causal else abs(i - j) <= plan.window // 2

    return [sum(sees(i, j) for j in range(length)) for i in range(length)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["full", "window", "chunk"])
def test_visible_pairs_equal_a_count_of_the_mask(kind, causal):
    for size in (1, 2, 5, 8, 40):
        keys = {"full": {}, "window": {"sliding_window": size}, "chunk": {"attention_chunk_size": size}}[kind]
        plan = tiny(is_causal=causal, **keys).layer_plan()[0]
        for length in (1, 4, 5, 8, 17):
            rows = _brute_pairs(plan, length, causal)
            assert visible_pairs(plan, length, causal) == sum(rows)
            assert visible_keys_of_last(plan, length, causal) == rows[-1]


def test_bad_lengths_are_refused():
    with pytest.raises(ValueError, match="length=0"):
        flops_per_token(tiny(), 0)
    with pytest.raises(ValueError, match="mode='train'"):
        flops_per_token(tiny(), 4, mode="train")
    with pytest.raises(ValueError, match="dtype_bytes=0"):
        kv_cache_size(tiny(), 4, dtype_bytes=0)
    with pytest.raises(ValueError, match="batch_size=0"):
        kv_cache_size(tiny(), 4, batch_size=0)
    with pytest.raises(ValueError, match="dtype='int3'"):
        describe(tiny(), dtype="int3")


def test_cache_of_published_configs():
    v3 = kv_cache_size(load_preset("deepseek-v3"), 1000)
    assert v3.per_token == 61 * (512 + 64) * 2
    llama = kv_cache_size(load_preset("llama-3-8b"), 8192, batch_size=2)
    assert llama.bytes == 2 * 8192 * 32 * 2 * 8 * 128 * 2
    mistral = kv_cache_size(load_preset("mistral-7b"), 32768)
    assert mistral.bytes == 32 * 4095 * 2 * 8 * 128 * 2 and mistral.per_token_beyond == 0


def test_describe_is_plain_data_and_readable():
    import json

    for name in sorted(EXACT):
        config = load_preset(name)
        facts = describe(config, 512)
        assert json.loads(json.dumps(facts)) == facts
        text = describe_text(config, 512, title=name)
        assert name in text and f"{EXACT[name]:,}" in text
    facts = describe(load_preset("gemma-2-9b"))
    assert [kind["layers"] for kind in facts["layers"]] == ["0, 2, ..., 40", "1, 3, ..., 41"]
    assert facts["layers"][0]["count"] == 21 and facts["kv_cache"]["share_of_multi_head"] == pytest.approx(0.375, abs=1e-4)


def test_layer_numbers_in_short():
    assert spans([0]) == "0"
    assert spans([0, 1, 2]) == "0-2"
    assert spans([0, 2]) == "0, 2"
    assert spans([0, 5, 6, 7, 9]) == "0, 5-7, 9"
