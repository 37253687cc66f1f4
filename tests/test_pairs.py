"""Every pair of toggles that docs/pairs.md calls working does work, on both backends, with a cache, and in training."""

import sys
from pathlib import Path

import pytest
import torch

from hf_variants import VariantsConfig, VariantsModel

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))
from toggles import BASE, TOGGLES, pairs, refusal  # noqa: E402

LENGTH, CACHED = 11, 7


def build(keys):
    torch.manual_seed(0)
    model = VariantsModel(VariantsConfig(**keys))
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def check(keys):
    model, ids = build(keys), torch.randint(0, 64, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    other = {"encoder_hidden_states": torch.randn(2, 5, 32)} if model.config.add_cross_attention else {}
    with torch.no_grad():
        whole = model(ids, **other).last_hidden_state
        model.set_attn_implementation("eager")
        assert (model(ids, **other).last_hidden_state - whole).abs().max() < 1e-5 * max(1.0, whole.abs().max().item())
        model.set_attn_implementation("sdpa")
        # `dynamic` keeps the frequencies of its prompt, so only a prompt within the original length is as long as the row
        dynamic = (keys.get("rope_parameters") or {}).get("rope_type") == "dynamic"
        if model.config.is_causal and not dynamic:
            first = model(ids[:, :CACHED], use_cache=True, **other)
            rest = model(ids[:, CACHED:], past_key_values=first.past_key_values, use_cache=True, **other).last_hidden_state
            assert (rest - whole[:, CACHED:]).abs().max() < 1e-5 * max(1.0, whole.abs().max().item())
    out = model.train()(ids, **other)
    states = [out[name] for name in ("last_hidden_state", "pooler_output") if name in out]
    sum(state.square().mean() for state in states).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", TOGGLES)
def test_toggle_alone(name):
    check({**BASE, **TOGGLES[name]})


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGGLES)
def test_toggle_with_every_other(name):
    tried = 0
    for first, second, keys in pairs():
        if name == first and refusal(keys) is None:
            try:
                check(keys)
            except AssertionError as error:
                raise AssertionError(f"{first} with {second}: {error}") from error
            tried += 1
    assert tried > 0 or name == list(TOGGLES)[-1]
