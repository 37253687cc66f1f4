"""Compensated rounding, symmetric codes, and what stays dense under a size."""

import pytest
import torch

from hf_variants.quantize import quantize_awq, quantize_rtn, save_quantized
from hf_variants.quantize.compensation import compensated_codes
from hf_variants.quantize.rounding import quantize_groups
from hf_variants.quantize.sensitivity import dense_within, size_of
from hf_variants.quantize.statistics import InputStatistics, squared_error
from tests.quantize.quantized import calibration, fitting


def correlated(tokens=256, features=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(features, features, generator=generator) / features**0.5 + 0.3
    return torch.randn(tokens, features, generator=generator) @ mix


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [32, 64])
def test_errors_of_outputs_fall_and_the_grid_stays(group, symmetric):
    x, weight = correlated(), torch.randn(48, 64)
    gram = x.t() @ x
    nearest = quantize_groups(weight, group, symmetric=symmetric)
    better = compensated_codes(weight, gram, group, symmetric=symmetric)
    assert torch.equal(nearest.scales, better.scales) and torch.equal(nearest.zeros, better.zeros)
    assert better.codes.max() <= 15
    losses = [squared_error((codes.dequantize() - weight).unsqueeze(1), gram) for codes in (nearest, better)]
    assert (losses[1] <= losses[0] * (1 + 1e-5)).all() and losses[1].sum() < 0.6 * losses[0].sum()
    # the loss is that of the outputs themselves
    direct = (x @ (better.dequantize() - weight).t()).square().sum()
    assert torch.allclose(direct, losses[1].sum(), rtol=1e-3)


def test_inputs_that_say_nothing_give_nearest_codes():
    weight = torch.randn(16, 64)
    for gram in (torch.zeros(64, 64), torch.eye(64)):
        assert torch.equal(compensated_codes(weight, gram, 32).codes, quantize_groups(weight, 32).codes)


def test_symmetric_codes_are_plain_gemm_with_zero_point_eight(tmp_path):
    result = quantize_awq(fitting(), calibration(), group_size=32, symmetric=True)
    assert all((codes.zeros == 8).all() for codes in result.codes.values())
    assert any(not (codes.zeros == 8).all() for codes in quantize_rtn(fitting(), group_size=32).codes.values())
    save_quantized(result, tmp_path / "q")


def test_statistics_keep_rows_or_their_products():
    x = correlated(200)
    few, many = InputStatistics(64), InputStatistics(64)
    few.add(x[:50])
    for part in x.split(30):
        many.add(part)
    assert few._gram is None and many._gram is not None
    for statistics, rows in ((few, x[:50]), (many, x)):
        columns = torch.rand(64) + 0.5
        statistics.rescale(columns)
        scaled = rows / columns
        assert torch.allclose(statistics.gram, scaled.t() @ scaled, rtol=1e-3, atol=1e-2)
        assert torch.allclose(statistics.magnitude, scaled.abs().sum(0), rtol=1e-4)


def test_a_size_leaves_dense_what_loses_most_per_byte():
    result = quantize_awq(fitting(), calibration(), group_size=32)
    smallest = size_of(result)
    with pytest.raises(ValueError, match=r"max_bytes=100 cannot be met: .* bytes; allow more"):
        dense_within(result, 100)
    assert dense_within(result, smallest)[0] == []
    kept, account = dense_within(result, smallest + 15_000)
    assert kept and account["bytes_expected"] <= smallest + 15_000
    shares = [unit["error_share"] / unit["extra_bytes"] for unit in account["left_dense"]]
    assert shares == sorted(shares, reverse=True)
    again = quantize_awq(fitting(), calibration(), group_size=32, leave_unquantized=kept)
    assert size_of(again) == account["bytes_expected"]
    for parts in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        for layer in (0, 1):
            held = [any(name.startswith(f"model.layers.{layer}.") and name.endswith(part) for name in kept) for part in parts]
            assert len(set(held)) == 1
