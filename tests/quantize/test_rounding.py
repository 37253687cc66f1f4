"""Rounding in groups: error bounds, float16 scales, degenerate groups, clipping."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_variants.quantize.rounding import fake_quantize, group_range, quantize_groups


@given(seed=st.integers(0, 500), spread=st.sampled_from([1e-4, 1.0, 50.0]), shift=st.sampled_from([-1.0, 0.0, 3.0]))
def test_error_is_at_most_half_a_step(seed, spread, shift):
    weight = (torch.randn(6, 64, generator=torch.Generator().manual_seed(seed)) + shift) * spread
    result = quantize_groups(weight, 32)
    step = result.scales.float().repeat_interleave(32, dim=1)
    # the zero point is rounded too, and the rounded scale may fall short of the range by 15 float16 roundings
    assert ((result.dequantize() - weight).abs() <= step * (1.0 + 15 * 2**-11)).all()
    assert torch.equal(result.dequantize(), fake_quantize(weight, 32))


def test_weights_are_coded_against_the_scale_that_is_stored():
    weight = torch.linspace(-1.0, 2.003, 64).view(1, 64)
    result = quantize_groups(weight, 64)
    assert result.scales.dtype == torch.float16
    stored = result.scales.float()
    expected = ((weight / stored).round() + result.zeros).clamp(0, 15)
    assert torch.equal(result.codes.float(), expected)


def test_constant_and_zero_groups_stay_finite_and_zero_stays_zero():
    weight = torch.zeros(2, 64)
    weight[1, 32:] = 0.5
    result = quantize_groups(weight, 32)
    dense = result.dequantize()
    assert torch.equal(dense[0], torch.zeros(64)) and torch.equal(dense[1, :32], torch.zeros(32))
    assert torch.allclose(dense[1, 32:], torch.full((32,), 0.5), atol=1e-3)


def test_ranges_always_hold_zero():
    low, high = group_range(torch.tensor([[1.0, 2.0, -3.0, -1.0]]), 2)
    assert low.tolist() == [[0.0, -3.0]] and high.tolist() == [[2.0, 0.0]]


def test_clipping_saturates_what_lies_outside():
    weight = torch.tensor([[-1.0, 0.2, 0.4, 10.0]])
    dense = quantize_groups(weight, 4, torch.tensor([[-1.0]]), torch.tensor([[1.0]])).dequantize()
    assert dense.max() <= 1.1 and abs(dense[0, 1] - 0.2) < 0.07
