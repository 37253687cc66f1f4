"""Output gates, query temperature, norms of rotated layers, rounded ALiBi, SparseMixer and weighted expert inputs by formula.

The native classes that have them are compared in tests/convert.
"""

import math

import pytest
import torch

from hf_variants.modeling.experts import VariantsSparseMLP
from hf_variants.modeling.positions import QueryTemperature, alibi_slopes
from hf_variants.modeling.rope_scaling import LongRope
from hf_variants.modeling.score_terms import AlibiBias
from hf_variants.modeling.sparsemixer import mix_sparsely
from tests.variants import EXPERTS, MLA, build, draw_ids, far, scaling, tiny


@torch.no_grad()
@pytest.mark.parametrize("base", ["gqa", "mla"])
@pytest.mark.parametrize("gate", ["channel", "head"])
def test_a_gate_of_zero_weights_halves_the_heads(base, gate):
    """sigmoid(0) = 1/2, so doubling `o_proj` gives the ungated model back; any other weight changes it."""
    plain, gated = build(tiny(base)), build(tiny(base, attn_output_gate=gate))
    state = {name: tensor * 2 if name.endswith("o_proj.weight") else tensor for name, tensor in plain.state_dict().items()}
    missing, unexpected = gated.load_state_dict(state, strict=False)
    assert not unexpected and all(name.endswith("self_attn.gate_proj.weight") for name in missing)
    for layer in gated.model.layers:
        layer.self_attn.gate_proj.weight.zero_()
    ids = draw_ids(2, 9)
    assert far(gated(ids).logits, plain(ids).logits) <= 1e-5
    gated.model.layers[0].self_attn.gate_proj.weight[0] += 1.0
    assert far(gated(ids).logits, plain(ids).logits) > 1e-3


@pytest.mark.parametrize(("gate", "width"), [("channel", 4 * 12), ("head", 4)])
def test_the_size_of_a_gate(gate, width):
    attention = build(tiny("gqa", attn_output_gate=gate)).model.layers[0].self_attn
    assert tuple(attention.gate_proj.weight.shape) == (width, 32)
    latent = build(tiny("mla", attn_output_gate=gate)).model.layers[0].self_attn
    assert latent.gate_proj.out_features == (4 * MLA["v_head_dim"] if gate == "channel" else 4)


def test_temperature_by_hand():
    found = QueryTemperature(0.1, 8, 1)(torch.tensor([[0, 6, 7, 14, 15, 8 * 99 - 1]])).flatten().tolist()
    steps = [0, 0, 1, 1, 2, 99]
    assert found == pytest.approx([1 + 0.1 * math.log(1 + step) for step in steps], rel=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("base", ["gqa", "mla"])
def test_temperature_starts_after_its_first_length_and_follows_the_position_ids(base):
    model = build(tiny(base, attn_temperature_tuning=True, floor_scale=6, attn_scale=0.9))
    plain = build(tiny(base))
    plain.load_state_dict(model.state_dict())
    ids = draw_ids(2, 9)
    found, expected = model(ids).logits, plain(ids).logits
    assert far(found[:, :6], expected[:, :6]) == 0.0
    assert far(found[:, 6:], expected[:, 6:]) > 1e-3
    later = torch.arange(20, 29).expand(2, -1)
    assert far(model(ids, position_ids=later).logits, found) > 1e-3  # RoPE alone would not see the shift


@torch.no_grad()
def test_norm_and_temperature_of_the_layers_named():
    model = build(tiny("temperature_chunked"))
    turned, unturned = (layer.self_attn for layer in model.model.layers)
    assert [type(part).__name__ for part in (turned.q_norm, unturned.q_norm)] == ["VariantsRMSNorm", "Identity"]
    assert [plan.tempered for plan in model.config.layer_plan()] == [False, True]


def test_rounded_alibi_by_hand():
    """bf16 keeps eight bits: 257 becomes 256, and a slope of 2^-1/4 becomes 0.83984375."""
    slopes = alibi_slopes(32)[:1]
    places = torch.tensor([[0, 1, 256, 257, 300]])
    bias = AlibiBias(slopes, places, places, 0.25).block(slice(None))[0, 0]
    slope = 0.83984375
    heights = torch.tensor([0.0, slope, 215.0, 215.0, 252.0])
    assert torch.equal(bias, -(heights.unsqueeze(1) - heights.unsqueeze(0)).abs() * 0.25)


# ---- SparseMixer ----
def test_sparsemixer_takes_the_best_and_weighs_it_among_its_near_rivals():
    logits = torch.tensor([[2.0, 1.9, 1.0, -1.0]])
    weights, indices = mix_sparsely(logits, 2, 0.05, training=False)
    # 1.9 lies within 2 * 0.05 * 2.0 of 2.0; in the second round 1.9 has no rival
    assert indices.tolist() == [[0, 1]]
    assert weights.flatten().tolist() == pytest.approx([1 / (1 + math.exp(-0.1)), 1.0], rel=1e-6)


def test_sparsemixer_samples_in_training_with_the_chances_of_its_shares():
    torch.manual_seed(0)
    logits = torch.tensor([[1.0, 0.9, 0.5, -1.0]]).repeat(40000, 1).requires_grad_()
    weights, indices = mix_sparsely(logits, 1, 0.3, training=True)  # the first three are rivals: all within 0.6 of 1.0
    shares = logits[0, :3].detach().softmax(-1)
    chosen = torch.bincount(indices.flatten(), minlength=4).float() / len(logits)
    assert chosen[3] == 0
    assert far(chosen[:3], shares) <= 0.01
    # the best choice counts whole, another whole or a third, by 1 : 3
    second = weights[indices.flatten() == 1].detach() / shares[1]
    assert set(second.mul(10000).round().flatten().tolist()) == {3333.0, 10000.0}
    assert (second > 0.9).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert far(weights[indices.flatten() == 0], shares[0]) <= 1e-6
    # the gradient is that of the share, whether or not the weight was cut
    weights.sum().backward()
    onehot = torch.nn.functional.one_hot(indices.flatten(), 4)[:, :3]
    share = shares[indices]
    assert far(logits.grad[:, :3], share * (onehot - shares)) <= 1e-6


def test_sparsemixer_never_takes_an_expert_twice():
    torch.manual_seed(0)
    for training in (False, True):
        weights, indices = mix_sparsely(torch.randn(200, 5), 5, 0.2, training)
        assert indices.sort(-1).values.tolist() == [[0, 1, 2, 3, 4]] * 200
        assert weights.isfinite().all()


# ---- weights on the inputs of experts ----
@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
def test_weighted_inputs_by_hand(implementation):
    config = tiny("moe", apply_router_weight_on_input=True, norm_topk_prob=False, router_scoring="sigmoid")
    config._experts_implementation = implementation
    layer = VariantsSparseMLP(config)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    states = torch.randn(1, 7, 32)
    expected = torch.zeros(7, 32)
    for token, row in enumerate(states[0]):
        scores = torch.sigmoid(layer.gate.weight @ row)
        for expert in scores.topk(EXPERTS["num_experts_per_tok"]).indices:
            gate, up = (layer.experts.gate_up_proj[expert] @ (row * scores[expert])).chunk(2)
            expected[token] += layer.experts.down_proj[expert] @ (torch.nn.functional.silu(gate) * up)
    assert far(layer(states)[0], expected) <= 1e-5


# ---- LongRoPE with a scale for either side ----
def test_longrope_scales_switch_where_the_factors_do():
    rule = LongRope(scaling("longrope", short_mscale=1.1, long_mscale=1.4), 12)
    assert rule.factor_at(torch.tensor([[3, 16, 17]])).flatten().tolist() == pytest.approx([1.1, 1.1, 1.4])
    assert LongRope(scaling("longrope", short_mscale=1.2, long_mscale=1.2), 12).factor_at(torch.tensor([[99]])) == 1.2


@pytest.mark.parametrize("given", [{"short_mscale": 1.1}, {"short_mscale": 1.1, "long_mscale": 1.1, "attention_factor": 1.0}])
def test_longrope_scales_come_in_pairs(given):
    with pytest.raises(ValueError, match="give attention_factor alone, or short_mscale and long_mscale together"):
        tiny("gqa", rope_parameters=scaling("longrope", **given))
