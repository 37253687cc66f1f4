"""Attention to the states of another stack: every toggle of the asking stack, every backend, with and without a cache.

Covers known failures B25 and B30 for cross-attention: no window cuts it, and sinks act in it on every backend.
"""

import pytest
import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from hf_variants import VariantsForCausalLM, VariantsModel
from hf_variants.modeling.cross_attention import CROSS_ATTENTIONS, VariantsCrossAttention, cross_mask
from tests.variants import ACROSS, MLA, TOGGLES, build, draw_ids, far, tiny

STATES = torch.randn(2, 6, 20, generator=torch.Generator().manual_seed(3))
REAL = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 1]])
SEEN = {"encoder_hidden_states": STATES, "encoder_attention_mask": REAL}


@pytest.mark.parametrize("name", TOGGLES)
def test_every_toggle_attends_to_another_stack(name):
    model, ids = build(tiny(name, **ACROSS), VariantsForCausalLM), draw_ids(2, 9)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        whole = model(ids, **SEEN, output_attentions=True)
        assert [tuple(weights.shape[2:]) for weights in whole.cross_attentions] == [(9, 6)] * 2
        assert all(far(weights[1, :, :, [0, 1, 4]], torch.zeros(1)) == 0 for weights in whole.cross_attentions)
        model.set_attn_implementation("sdpa")
        scale = max(1.0, whole.logits.abs().max().item())
        assert far(model(ids, **SEEN).logits, whole.logits) < 2e-5 * scale
        assert far(model(ids, **{**SEEN, "encoder_hidden_states": STATES + 1}).logits, whole.logits) > 1e-3
        if "dynamic" not in name:  # a cached row keeps the frequencies of its prompt
            first = model(ids[:, :5], **SEEN, use_cache=True)
            steps = [first.logits] + [
                model(ids[:, t : t + 1], **SEEN, past_key_values=first.past_key_values, use_cache=True).logits
                for t in range(5, 9)
            ]
            assert far(torch.cat(steps, dim=1), whole.logits) < 2e-5 * scale
    loss = model.train()(ids, **SEEN, labels=ids, use_cache=False).loss
    loss.backward()
    assert loss.isfinite() and all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["gqa", "mla", "mla_qk_head", "sinks_softcap_sliding"])
def test_flex_equals_eager(name):
    model, ids = build(tiny(name, **ACROSS, attention_sinks=False), VariantsModel), draw_ids(2, 5)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        whole = model(ids, **SEEN).last_hidden_state
        model.set_attn_implementation("flex_attention")
        assert far(model(ids, **SEEN).last_hidden_state, whole) < 2e-5


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["gqa", "mla", "softcap", "sinks"])
def test_a_token_that_sees_no_state_gets_nothing_from_them(name, backend):
    model, ids = build(tiny(name, **ACROSS), VariantsModel), draw_ids(2, 4)
    model.set_attn_implementation(backend)
    seen = torch.ones(2, 1, 4, 6, dtype=torch.bool)
    seen[0, :, 2] = False
    seen[1] = False
    states = STATES.clone().requires_grad_()
    out = model(ids, encoder_hidden_states=states, encoder_attention_mask=seen).last_hidden_state
    other = model(ids, encoder_hidden_states=STATES * 3 + 1, encoder_attention_mask=seen).last_hidden_state
    assert far(out[1], other[1]) == 0 and out.isfinite().all() and far(out[0, 3], other[0, 3]) > 1e-3
    out[1].sum().backward()
    assert far(states.grad[1], torch.zeros(1)) == 0


def test_keys_are_made_once_whatever_the_windows_and_follow_the_beams():
    model, ids = build(tiny("sliding", **ACROSS), VariantsModel), draw_ids(2, 3)
    # as transformers' `generate` makes it: windows in both caches
    cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    calls = []
    model.layers[1].cross_attn.k_proj.register_forward_hook(lambda *args: calls.append(1))
    with torch.no_grad():
        model(ids, **SEEN, past_key_values=cache, use_cache=True)
        assert cache.cross_attention_cache.layers[0].keys.shape[2] == 6
        cache.reorder_cache(torch.tensor([1, 0]))
        step = draw_ids(2, 1, seed=8)
        flipped = {name: value.flip(0) for name, value in SEEN.items()}
        swapped = model(step, **flipped, past_key_values=cache, use_cache=True).last_hidden_state
        assert calls == [1]
        whole = model(torch.cat((ids.flip(0), step), dim=1), **flipped).last_hidden_state[:, -1:]
    assert far(swapped, whole) < 2e-5


def test_a_filled_cache_replaces_the_states():
    model, ids = build(tiny("gqa", **ACROSS), VariantsModel), draw_ids(2, 4)
    with torch.no_grad():
        cache = model(ids[:, :3], encoder_hidden_states=STATES, use_cache=True).past_key_values
        step = model(ids[:, 3:], past_key_values=cache, use_cache=True).last_hidden_state
        assert far(step, model(ids, encoder_hidden_states=STATES).last_hidden_state[:, 3:]) < 2e-5
        with pytest.raises(ValueError, match="one cache serves one encoder input"):
            model(ids[:, 3:], encoder_hidden_states=STATES[:, :4], past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("reentrant", [True, False])
def test_states_keep_their_gradient_under_activation_checkpointing(reentrant):
    model, ids, grads = build(tiny("sandwich", **ACROSS), VariantsModel).train(), draw_ids(2, 4), []
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            model.enable_input_require_grads()
        states = STATES.clone().requires_grad_()
        model(ids, encoder_hidden_states=states, use_cache=True).last_hidden_state.square().mean().backward()
        grads.append(states.grad)
    assert far(*grads) < 1e-6 and grads[0].abs().max() > 0


def test_an_encoder_may_attend_to_another():
    model, ids = build(tiny("gqa", **ACROSS, is_causal=False), VariantsModel), draw_ids(2, 4)
    first = model(ids, **SEEN).last_hidden_state[:, 0]
    changed = model(torch.cat((ids[:, :3], ids[:, 3:] % 60 + 1), dim=1), **SEEN).last_hidden_state[:, 0]
    assert far(first, changed) > 1e-3


@pytest.mark.parametrize("keys", [{}, MLA], ids=["gqa", "mla"])
def test_the_layer_works_alone(keys):
    config = tiny("gqa", **ACROSS, **keys)
    config._attn_implementation = "sdpa"
    layer = CROSS_ATTENTIONS[config.attention_type](config, config.layer_plan()[0], 20)
    out, _ = layer(torch.randn(2, 3, 32), STATES, cross_mask(REAL, 2, STATES))
    assert out.shape == (2, 3, 32)
    assert config.attention_type == "mla" or isinstance(layer, VariantsCrossAttention)


@pytest.mark.parametrize(
    ("keys", "inputs", "words"),
    [
        ({}, {"encoder_hidden_states": STATES}, "add_cross_attention=False"),
        ({}, {"encoder_attention_mask": REAL}, "add_cross_attention=False"),
        (ACROSS, {}, "no states to attend to"),
        (ACROSS, {"encoder_attention_mask": REAL}, "give both"),
        (ACROSS, {"encoder_hidden_states": STATES[..., :7]}, "cross_attention_hidden_size=20"),
        (ACROSS, {**SEEN, "encoder_attention_mask": REAL[:, :4]}, "6 encoder states"),
        (ACROSS, {**SEEN, "encoder_attention_mask": torch.zeros(2, 1, 4, 6)}, "float32"),
    ],
)
def test_what_does_not_fit_is_refused(keys, inputs, words):
    model = build(tiny("gqa", **keys), VariantsModel)
    with pytest.raises(ValueError, match=words):
        model(draw_ids(2, 4), **inputs)
