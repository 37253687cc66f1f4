"""Smoothing alone, without rounding, leaves every model's logits as they are (known failures B52 and B53)."""

import pytest
import torch

from hf_variants.quantize.folding import apply_smoothing
from hf_variants.quantize.sites import layer_sites
from hf_variants.quantize.stacks import stacks_of
from hf_variants.quantize.unfuse import working_copy
from tests.variants import TOGGLES, build, draw_ids, far, tiny


def sites_of(model):
    places = [(stack, name, plan) for stack in stacks_of(model) for name, plan in stack.names()]
    return [layer_sites(stack.config, plan, name, model.get_submodule(name)) for stack, name, plan in places]


def smooth_everything(model, dtype=torch.float32):
    """Fold random scales between 1/4 and 4 into every site; returns the number of sites."""
    count = 0
    for sites in sites_of(model):
        for site in sites.sites:
            source = model.get_submodule(site.source).weight
            scales = torch.exp2(torch.rand(source.shape[0]) * 4 - 2)
            apply_smoothing(model, site, scales, dtype)
            count += 1
    return count


@pytest.mark.parametrize("name", TOGGLES)
def test_smoothing_keeps_the_logits_of_every_toggle(name):
    model = build(tiny(name))
    ids = draw_ids(2, 24)
    smoothed = working_copy(model, {"quant_method": "awq"})
    with torch.no_grad():
        expected = model(ids).logits
        assert far(smoothed(ids).logits, expected) < 1e-5
        smooth_everything(smoothed)
        assert far(smoothed(ids).logits, expected) < 1e-5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("name", ["gqa", "rmsnorm_unit_offset", "layernorm", "moe_shared_gate", "mla_q_lora"])
def test_rounding_the_gains_to_bfloat16_costs_nothing_where_there_is_no_norm_bias(name):
    overrides = {"norm_bias": False} if name == "layernorm" else {}
    model = build(tiny(name, **overrides))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.copy_(parameter.bfloat16())
        ids = draw_ids(2, 24)
        expected = model(ids).logits
        smoothed = working_copy(model, {"quant_method": "awq"})
        smooth_everything(smoothed, torch.bfloat16)
        assert far(smoothed(ids).logits, expected) < 1e-5 * max(1.0, expected.abs().max().item())
    gains = smoothed.get_submodule("model.layers.0.input_layernorm").weight
    assert torch.equal(gains, gains.bfloat16().float())


def test_silent_channels_of_a_norm_keep_their_gain():
    model = build(tiny("gqa"))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight[3] = 0.0
        ids = draw_ids(2, 24)
        expected = model(ids).logits
        smoothed = working_copy(model, {"quant_method": "awq"})
        smooth_everything(smoothed, torch.float16)
        assert far(smoothed(ids).logits, expected) < 1e-5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize(
    ("name", "sites", "skipped"),
    [
        ("gqa", 4, 0),
        ("mqa", 4, 0),
        ("mla", 4, 1),
        ("mla_q_lora", 5, 1),
        ("parallel", 3, 0),
        ("parallel_two_norms", 4, 0),
        ("sandwich", 4, 0),
        ("post", 2, 2),
        ("post_ln", 2, 2),
        ("pre_normed_residual", 2, 2),
        ("rmsnorm_non_parametric", 2, 2),
        ("plain", 3, 1),
        ("swiglu_clamped", 3, 1),
        ("moe_shared_gate", 3 + 4 + 1, 0),
    ],
)
def test_sites_of_a_layer_and_those_left_out_with_a_reason(name, sites, skipped):
    found = sites_of(working_copy(build(tiny(name)), {"quant_method": "awq"}))[0]
    assert (len(found.sites), len(found.skipped)) == (sites, skipped)
    assert all(skip.reason for skip in found.skipped)


def test_relu_lets_a_scale_pass_and_gelu_does_not():
    passes = sites_of(build(tiny("plain", hidden_act="relu")))[0]
    assert any(site.source.endswith("mlp.up_proj") for site in passes.sites)
    blocked = sites_of(build(tiny("plain")))[0]
    assert any("gelu" in skip.reason for skip in blocked.skipped)


def test_router_and_shared_gate_are_rescaled_but_not_quantised():
    found = sites_of(working_copy(build(tiny("moe_shared_gate")), {"quant_method": "awq"}))[1]
    site = next(site for site in found.sites if site.source.endswith("post_attention_layernorm"))
    assert site.followers == ("model.layers.1.mlp.gate", "model.layers.1.mlp.shared_expert_gate")
    assert not any(name.endswith(("mlp.gate", "shared_expert_gate")) for name in found.linears)
