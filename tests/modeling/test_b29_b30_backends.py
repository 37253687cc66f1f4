"""B29, B30: eager, sdpa and flex compute the same for every toggle, in outputs and in gradients; nothing is dropped."""

import pytest
import torch

import hf_variants.modeling.blockwise_attention as blockwise_attention
from hf_variants.modeling.attention_scores import eager_attention
from hf_variants.modeling.fused_attention import sdpa_attention
from hf_variants.modeling.score_terms import AlibiBias, ScoreTerms
from tests.modeling.helpers import TOLERANCE, logits_of, model_of, pack, scaled_far
from tests.variants import ATTENTION, POSITIONS, build, draw_ids, tiny

NAMES = [*ATTENTION, *POSITIONS]


@pytest.mark.parametrize("is_causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("name", NAMES)
def test_b29_b30_sdpa_equals_eager(name, is_causal):
    ids = draw_ids(2, 21)
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    for inputs in ({}, {"attention_mask": mask}):
        eager = logits_of(model_of(name, "eager", is_causal), ids, **inputs)
        sdpa = logits_of(model_of(name, "sdpa", is_causal), ids, **inputs)
        real = mask.bool() if inputs else torch.ones_like(mask).bool()
        assert scaled_far(sdpa[real], eager[real]) <= TOLERANCE


@pytest.mark.parametrize("name", ["gqa", "mla_softcap", "softcap", "sliding", "alibi_6_heads", "chunked_nope"])
def test_b29_flex_equals_eager(name):
    ids = draw_ids(2, 21)
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    flex, eager = (model_of(name, kind) for kind in ("flex_attention", "eager"))
    padded = (logits_of(model, ids, attention_mask=mask)[mask.bool()] for model in (flex, eager))
    assert scaled_far(*padded) <= TOLERANCE
    # without a mask the rule of causality and window is the backend's own
    assert scaled_far(*(logits_of(model, ids) for model in (flex, eager))) <= TOLERANCE


@pytest.mark.parametrize("name", ["sinks", "mla_sinks"])
def test_b30_flex_refuses_sinks_on_a_cpu(name):
    with pytest.raises(ValueError, match="neither gradients nor sinks"):
        logits_of(model_of(name, "flex_attention"), draw_ids(1, 8), use_cache=False)


def test_b29_flex_refuses_gradients_on_a_cpu():
    with pytest.raises(ValueError, match="neither gradients nor sinks"):
        model_of("gqa", "flex_attention")(draw_ids(1, 8))


@pytest.mark.parametrize("name", ["flash_attention_2", "paged|eager"])
def test_b29_unknown_backends_are_refused(name):
    config = tiny("softcap")
    config._attn_implementation = name
    with pytest.raises((ValueError, ImportError)):
        build(config)
    with pytest.raises((ValueError, ImportError)):
        model = build(tiny("softcap"))
        model.set_attn_implementation(name)
        logits_of(model, draw_ids(1, 8))


@pytest.mark.parametrize("field", ["attn_logit_softcapping", "final_logit_softcapping"])
@pytest.mark.parametrize("cap", [0.0, -1.0])
def test_b29_a_cap_of_nothing_is_refused(field, cap):
    with pytest.raises(ValueError, match=f"{field}=.*greater than zero"):
        tiny("gqa", **{field: cap})


@pytest.mark.parametrize("base", ["gqa", "mla"])
def test_b29_a_cap_is_taken_after_the_scale_and_before_the_mask(base):
    model = build(tiny(base, attn_logit_softcapping=1.0))
    plain = build(tiny(base))
    plain.load_state_dict(model.state_dict())
    ids = draw_ids(1, 12)
    assert scaled_far(logits_of(model, ids), logits_of(plain, ids)) > 1e-2
    assert scaled_far(logits_of(model, ids)[:, :5], logits_of(model, ids[:, :5])) <= TOLERANCE


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["sinks", "mla_sinks", "sinks_softcap_sliding"])
def test_b30_sinks_count_learn_and_vanish(name, backend):
    config = tiny(name)
    config._attn_implementation = backend
    model, ids = build(config), draw_ids(2, 12)
    base = {"attention_sinks": False}
    without = build(tiny(name, **base))
    without.load_state_dict({key: value for key, value in model.state_dict().items() if "sinks" not in key})
    for value, same in ((3.0, False), (float("-inf"), True)):
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.sinks.fill_(value)
        difference = scaled_far(logits_of(model, ids), logits_of(without, ids))
        assert (difference <= TOLERANCE) if same else (difference > 1e-2)
    model = build(config)
    model(ids, labels=ids).loss.backward()
    assert all(layer.self_attn.sinks.grad.abs().min() > 0 for layer in model.model.layers)


def gradients(name, backend, is_causal, inputs):
    config = tiny(name, is_causal=is_causal)
    config._attn_implementation = backend
    model = build(config)
    model(**inputs).loss.backward()
    return {key: parameter.grad for key, parameter in model.named_parameters()}


@pytest.mark.parametrize("is_causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("name", ["gqa", "mla_alternating", "sinks", "softcap", "sinks_softcap_sliding", "alibi_terms"])
def test_b29_b30_parameter_gradients_equal_eager(name, is_causal, monkeypatch):
    """Blocks of 16 queries, the fewest, so that a row of 45 takes three of them; packed, with pads."""
    monkeypatch.setattr(blockwise_attention, "BLOCK_ELEMENTS", 1)
    ids, positions, mask = pack([10, 30], pads=5)
    labels = ids.masked_fill(mask == 0, -100)
    for inputs in (
        {"input_ids": ids, "labels": ids},
        {"input_ids": ids, "labels": labels, "attention_mask": mask, "position_ids": positions},
    ):
        eager, sdpa = (gradients(name, backend, is_causal, inputs) for backend in ("eager", "sdpa"))
        for key in eager:
            assert scaled_far(sdpa[key], eager[key]) <= TOLERANCE, key


@pytest.mark.parametrize("name", NAMES)
def test_b29_b30_training_under_autocast_follows_fp32(name):
    """Rotated queries are fp32 and values bfloat16 there; no cache, so that MLA runs its expanded form."""
    model, ids = build(tiny(name)).train(), draw_ids(2, 24)
    expected = model(ids, labels=ids, use_cache=False).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=0.05)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


CASES = {
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True},
    "all": {"softcap": 1.5, "sinks": True, "alibi": True},
}


class Layer(torch.nn.Module):
    def __init__(self, is_causal):
        super().__init__()
        self.is_causal = is_causal


def attend(function, is_causal, kv_heads, case, mask_kind, offset):
    """Output and gradients of a seeded draw: 2 rows, 4 heads, 37 queries, 37 + offset keys, values of another width."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).float().requires_grad_()

    q_len, kv_len = 37, 37 + offset
    query, key, value = draw(2, 4, q_len, 8), draw(2, kv_heads, kv_len, 8), draw(2, kv_heads, kv_len, 6)
    sinks = draw(4) if case.get("sinks") else None
    alibi = None
    if case.get("alibi"):
        places = torch.arange(kv_len).expand(2, -1)
        alibi = AlibiBias(torch.tensor([0.5, 0.25, 0.1, 0.01]), places[:, offset:], places)
    queries, keys = torch.arange(q_len).view(-1, 1) + offset, torch.arange(kv_len).view(1, -1)
    visible = (keys <= queries) if is_causal else torch.ones(q_len, kv_len).bool()
    mask, tensors = None, [query, key, value, *([] if sinks is None else [sinks])]
    if mask_kind == "boolean":
        hidden = torch.rand(2, 1, q_len, kv_len, generator=generator) < 0.3
        mask = visible & ~hidden | (keys == queries)
    if mask_kind == "per_head":
        hidden = torch.rand(2, 4, q_len, kv_len, generator=generator) < 0.3
        mask = visible & ~hidden | (keys == queries)
    if mask_kind == "float":
        mask = draw(2, 1, q_len, kv_len)
        tensors.append(mask)
    out, _ = function(
        Layer(is_causal), query, key, value, mask, scaling=0.4, terms=ScoreTerms(case.get("softcap"), alibi, sinks)
    )
    weights = torch.randn(out.shape, generator=generator)
    return out, torch.autograd.grad((out * weights).sum(), tensors)


@pytest.mark.parametrize("mask_kind", ["none", "boolean", "per_head", "float"])
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "both_ways"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_b29_b30_blockwise_gradients_equal_eager(case, kv_heads, is_causal, mask_kind, monkeypatch):
    """q, k, v, sinks and an additive mask; 37 queries in blocks of 16, also behind 5 cached keys, and in one as on a card."""
    for offset, elements in ((0, 1), (5, 1), (5, blockwise_attention.ACCELERATOR_BLOCK_ELEMENTS)):
        monkeypatch.setattr(blockwise_attention, "BLOCK_ELEMENTS", elements)
        arguments = is_causal, kv_heads, CASES[case], mask_kind, offset
        out, grads = attend(sdpa_attention, *arguments)
        expected, expected_grads = attend(eager_attention, *arguments)
        assert scaled_far(out, expected) <= TOLERANCE
        for grad, expected_grad in zip(grads, expected_grads, strict=True):
            assert scaled_far(grad, expected_grad) <= TOLERANCE


@pytest.mark.parametrize("mask_kind", ["none", "float"])
@pytest.mark.parametrize("case", CASES)
def test_b29_b30_gradients_of_blockwise_gradients_equal_eager(case, mask_kind, monkeypatch):
    monkeypatch.setattr(blockwise_attention, "BLOCK_ELEMENTS", 1)

    def twice(function):
        """Gradients of the squared gradients of query, key, value, sinks and an additive mask."""
        generator, length = torch.Generator().manual_seed(3), 21
        tensors = [torch.randn(1, heads, length, 8, generator=generator).requires_grad_() for heads in (4, 2, 2)]
        sinks = torch.randn(4, generator=generator).requires_grad_() if CASES[case].get("sinks") else None
        mask = torch.randn(1, 1, length, length, generator=generator).requires_grad_() if mask_kind == "float" else None
        places = torch.arange(length)[None]
        alibi = AlibiBias(torch.tensor([0.5, 0.25, 0.1, 0.01]), places, places) if CASES[case].get("alibi") else None
        terms = ScoreTerms(CASES[case].get("softcap"), alibi, sinks)
        out = function(Layer(True), *tensors, mask, scaling=0.4, terms=terms)[0]
        tensors += [part for part in (sinks, mask) if part is not None]
        weights = torch.randn(out.shape, generator=generator)
        grads = torch.autograd.grad((out * weights).sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in grads), tensors)

    for grad, expected in zip(twice(sdpa_attention), twice(eager_attention), strict=True):
        assert scaled_far(grad, expected) <= TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_b29_b30_blockwise_rounds_no_worse_than_eager_in_bfloat16(case, monkeypatch):
    """Outputs and gradients in bfloat16, both against the reference in fp32."""
    monkeypatch.setattr(blockwise_attention, "BLOCK_ELEMENTS", 1)

    def of(function, dtype):
        def cast(layer, query, key, value, *rest, **kwargs):
            out, weights = function(layer, query.to(dtype), key.to(dtype), value.to(dtype), *rest, **kwargs)
            return out.float(), weights

        out, grads = attend(cast, True, 2, CASES[case], "none", 5)
        return [out, *grads]

    exact, eager = of(eager_attention, torch.float32), of(eager_attention, torch.bfloat16)
    blocks = of(sdpa_attention, torch.bfloat16)
    for ours, theirs, truth in zip(blocks, eager, exact, strict=True):
        assert scaled_far(ours, truth) <= 1.5 * scaled_far(theirs, truth) + 2**-7


@pytest.mark.parametrize("case", CASES)
def test_b29_blockwise_keeps_no_scores(case, monkeypatch):
    """Nothing saved for the backward pass is as large as the scores of all queries and keys."""
    monkeypatch.setattr(blockwise_attention, "BLOCK_ELEMENTS", 1)
    sizes = []

    def note(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attend(sdpa_attention, True, 2, CASES[case], "none", 0)
    assert sizes and max(sizes) < 2 * 4 * 37 * 37 / 2
