"""The AutoAWQ gemm layout: its nibble order, its round trip, what it refuses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_variants.modeling.awq_packing import from_halves, pack_gemm, to_halves, unpack_gemm, unpack_halves


def test_nibbles_are_interleaved_as_autoawq_writes_them():
    codes = torch.arange(8, dtype=torch.uint8).unsqueeze(0)
    # nibble 0 holds column 0, nibble 1 column 2, ... : 0x75316420
    assert pack_gemm(codes).item() == 0x75316420


@given(rows=st.integers(1, 5), words=st.integers(1, 6), seed=st.integers(0, 1000))
def test_unpack_inverts_pack(rows, words, seed):
    codes = torch.randint(0, 16, (rows, 8 * words), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    packed = pack_gemm(codes)
    assert packed.dtype == torch.int32 and packed.shape == (rows, words)
    assert torch.equal(unpack_gemm(packed), codes)
    halves = to_halves(packed)
    assert halves.dtype == torch.uint8 and halves.shape == (rows, 4 * words)
    assert torch.equal(unpack_halves(halves), codes) and torch.equal(from_halves(halves), packed)


def test_columns_that_fill_no_word_are_refused():
    with pytest.raises(ValueError, match="columns=12 .* multiple of 8"):
        pack_gemm(torch.zeros(2, 12, dtype=torch.uint8))
