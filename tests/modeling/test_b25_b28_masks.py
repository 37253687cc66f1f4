"""B25, B28: which token sees which, against plain loops; and windows that hold on every backend."""

import itertools

import pytest
import torch

from hf_variants.modeling.masks import Geometry, build_mask, documents_of
from tests.modeling.helpers import TOLERANCE, logits_of, scaled_far
from tests.variants import MLA, VariantsConfig, build, draw_ids, tiny

# name of a row: (real tokens, document of each token or None, position of each token)
ROWS = {
    "plain": ([1] * 9, None, list(range(9))),
    "left": ([0, 0, 1, 1, 1, 1, 1, 1, 1], None, [0, 0, 0, 1, 2, 3, 4, 5, 6]),
    "right": ([1, 1, 1, 1, 1, 1, 0, 0, 0], None, [0, 1, 2, 3, 4, 5, 5, 5, 5]),
    "interior": ([1, 1, 0, 1, 1, 0, 0, 1, 1], None, [0, 1, 1, 2, 3, 3, 3, 4, 5]),
    "pads": ([0] * 9, None, [0] * 9),
    "packed": ([1] * 9, [0, 0, 0, 1, 1, 1, 1, 1, 2], [0, 1, 2, 0, 1, 2, 3, 4, 0]),
    "packed_pads": ([0, 1, 1, 0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1, 1], [9, 0, 1, 7, 0, 1, 2, 0, 0]),
}


def sees(q, k, window, chunk, is_causal, real, documents, positions):
    """The rule in words: itself always; else real, not later when causal, near, in its chunk, in its document."""
    if q == k:
        return True
    if not real[k] or (is_causal and k > q):
        return False
    if window is not None and (q - k >= window if is_causal else abs(q - k) > window // 2):
        return False
    if documents is not None and documents[q] != documents[k]:
        return False
    if chunk is not None:
        first = real.index(1)
        place = (lambda i: positions[i]) if documents is not None else (lambda i: i - first)
        return place(q) // chunk == place(k) // chunk
    return True


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_b25_masks_equal_loops(row, is_causal):
    real, documents, positions = ROWS[row]
    index = torch.arange(9)
    geometry = Geometry(index, index, True, False)
    for window, chunk in [(None, None), *((w, None) for w in (1, 2, 3, 4, 8, 9, 20)), *((None, c) for c in (1, 2, 4, 9, 20))]:
        mask = build_mask(
            geometry,
            window=window,
            chunk=chunk,
            is_causal=is_causal,
            padding=None if all(real) else torch.tensor([real]).bool(),
            documents=None if documents is None else torch.tensor([documents]),
            positions=torch.tensor([positions]),
        )
        if mask is None:  # the backend's own rule: causal, or everything
            mask = torch.ones(1, 1, 9, 9).bool()
            mask = mask.tril() if is_causal else mask
        for q, k in itertools.product(range(9), range(9)):
            if real[q]:  # what a pad sees is nobody's business
                expected = sees(q, k, window, chunk, is_causal, real, documents, positions) if any(real) else q == k
                assert bool(mask[0, 0, q, k]) == expected, (window, chunk, q, k)
        assert mask.any(-1).all()


@pytest.mark.parametrize("row", ["packed", "packed_pads"])
def test_b03_documents_are_read_from_positions(row):
    real, documents, positions = ROWS[row]
    found = documents_of(torch.tensor([positions]), torch.tensor([real]).bool())[0].tolist()
    kept = [i for i in range(9) if real[i]]
    assert [found[i] for i in kept] == [documents[i] for i in kept]


def changed_rows(model, ids, column, **inputs):
    """Which positions feel a change of the token at `column`."""
    other = ids.clone()
    other[:, column] = ids[:, column] % 60 + 1
    difference = (logits_of(model, ids, **inputs) - logits_of(model, other, **inputs)).abs().amax((0, 2))
    return [index for index, value in enumerate(difference.tolist()) if value > 0]


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("base", ["gqa", "mla", "softcap", "alibi"])
def test_b25_b28_a_window_reaches_exactly_as_far_as_it_says(base, is_causal, backend):
    """One layer, W visible tokens (W // 2 on either side for an encoder), with and without a mask, in training and not."""
    for window in (1, 3, 4, 12, 50):
        config = tiny(base, num_hidden_layers=1, sliding_window=window, is_causal=is_causal)
        config._attn_implementation = backend
        model, ids, at = build(config), draw_ids(1, 12), 5
        near = range(at, at + window) if is_causal else range(at - window // 2, at + window // 2 + 1)
        expected = [column for column in near if 0 <= column < 12]
        assert changed_rows(model, ids, at) == expected
        assert changed_rows(model, ids, at, attention_mask=torch.ones_like(ids)) == expected
        assert changed_rows(model.train(), ids, at) == expected


@pytest.mark.parametrize("window", [0, -3])
@pytest.mark.parametrize("extra", [{}, MLA])
def test_b25_a_window_of_nothing_is_refused(window, extra):
    with pytest.raises(ValueError, match="sliding_window=.*greater than zero"):
        VariantsConfig(num_attention_heads=4, sliding_window=window, **{**extra})


@pytest.mark.parametrize("name", ["gqa", "mla", "sinks", "softcap", "alibi"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_b25_a_window_as_long_as_the_row_is_no_window(name, is_causal):
    ids = draw_ids(2, 12)
    wide = 12 if is_causal else 24
    windowed = build(tiny(name, sliding_window=wide, is_causal=is_causal))
    assert scaled_far(logits_of(windowed, ids), logits_of(build(tiny(name, is_causal=is_causal)), ids)) <= TOLERANCE


@pytest.mark.parametrize("name", ["gqa", "mla", "sinks_softcap_chunked", "alibi"])
def test_ready_made_4d_masks_are_obeyed(name):
    """A boolean and an additive causal mask with left pads give what the 2D mask gives."""
    model, ids = build(tiny(name, attention_chunk_size=None, layer_types=None)), draw_ids(2, 10)
    flat = torch.ones_like(ids)
    flat[0, :3] = 0
    visible = torch.ones(10, 10).tril().bool()[None, None] & flat.bool()[:, None, None]
    visible = visible | torch.eye(10).bool()
    positions = (flat.cumsum(1) - 1).clamp(min=0)
    expected = logits_of(model, ids, attention_mask=flat)
    for ready in (visible, torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)):
        out = logits_of(model, ids, attention_mask=ready, position_ids=positions)
        assert scaled_far(out[0, 3:], expected[0, 3:]) <= TOLERANCE and scaled_far(out[1], expected[1]) <= TOLERANCE
