"""transformers' quantized caches: every attention kind decodes on them within what eight bits lose, or is refused."""

import pytest
import torch
from transformers.cache_utils import QuantizedCache

from tests.variants import build, draw_ids, tiny

WORKS = [
    "gqa",
    "mqa",
    "mla",
    "mla_q_lora",
    "mla_qk_head",
    "dynamic",
    "longrope",
    "qk_full",
    "alibi",
    "sinks",
    "softcap",
    "learned",
    "parallel",
    "moe_mla",
]
REFUSED = ["sliding", "chunked", "mla_sliding"]


def steps(model, ids, cache):
    """Logits of one token after the other."""
    with torch.no_grad():
        out = [model(ids[:, :6], past_key_values=cache, use_cache=True).logits[:, -1]]
        out += [model(ids[:, [t]], past_key_values=cache, use_cache=True).logits[:, -1] for t in range(6, ids.shape[1])]
    return torch.stack(out, 1)


@pytest.mark.parametrize("name", WORKS)
def test_an_fp8_cache_decodes_close_to_a_plain_one(name):
    model, ids = build(tiny(name)), draw_ids(2, 14)
    with torch.no_grad():
        expected = model(ids).logits[:, 5:]
    found = steps(model, ids, QuantizedCache("fp8", model.config))
    error = float((found - expected).square().mean() / expected.square().mean())
    assert 0 < error < 0.01, error
    # what was cached in one call is what later calls see
    out = model.generate(
        ids, max_new_tokens=4, do_sample=False, cache_implementation="quantized", cache_config={"backend": "fp8"}
    )
    assert out.shape == (2, 18)


@pytest.mark.parametrize("name", REFUSED)
def test_windows_are_refused_by_name(name):
    model, ids = build(tiny(name)), draw_ids(2, 6)
    with pytest.raises(ValueError, match="only supported for models with only full attention layers"):
        model.generate(ids, max_new_tokens=2, cache_implementation="quantized", cache_config={"backend": "fp8"})
