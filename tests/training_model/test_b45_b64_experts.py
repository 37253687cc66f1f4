"""B45, B64: every expert parameter has a gradient, and every way of computing the experts gives the same numbers."""

import pytest
import torch

from hf_variants import VariantsForCausalLM
from hf_variants.quantize.unfuse import unfused_state_dict
from tests.training_model.launch import launch
from tests.training_model.support import batch_of, sparse_config, sparse_model, uneven_rows

EXPERTS = {
    "gated": {},
    "gated_bias": {"expert_bias": True},
    "plain": {"mlp_type": "plain", "hidden_act": "gelu"},
    "plain_bias": {"mlp_type": "plain", "hidden_act": "gelu", "expert_bias": True},
    "clamped": {"swiglu_limit": 0.5, "expert_bias": True},
    "shared": {"num_shared_experts": 1, "shared_expert_gate": True},
}


def unfused(model, **options):
    """The same model with one Linear per expert matrix."""
    config = sparse_config(**options)
    config.quantization_config = {"quant_method": "none"}
    apart = VariantsForCausalLM(config)
    apart.load_state_dict(unfused_state_dict(model.state_dict()))
    return apart


def biased(**options):
    model = sparse_model(router_bias=True, **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.5)
    return model


def gradients_of(model, batch):
    model.zero_grad()
    out = model.train()(**batch)
    out.loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("apart", [False, True], ids=["fused", "unfused"])
@pytest.mark.parametrize("kernel", ["eager", "batched_mm", "grouped_mm"])
def test_b45_experts_without_tokens_have_gradients(name, apart, kernel):
    model = biased(**EXPERTS[name])
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.zero_()
            layer.mlp.gate.bias.copy_(torch.tensor([9.0, 8.0, -8.0, -9.0]))
    model = unfused(model, router_bias=True, **EXPERTS[name]) if apart else model
    model.set_experts_implementation(kernel)
    gradients = gradients_of(model, batch_of(uneven_rows(4)))
    experts = {key: gradient for key, gradient in gradients.items() if ".experts." in key}
    assert len(experts) == sum(".experts." in key for key, _ in model.named_parameters())
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())
    if not apart:
        down = experts["model.layers.0.mlp.experts.down_proj"]
        assert down[:2].abs().amax((1, 2)).min() > 0
        assert down[2:].abs().max() == 0


@pytest.mark.parametrize("name", EXPERTS)
def test_b64_kernels_agree_in_outputs_and_gradients(name):
    model, batch = biased(**EXPERTS[name]), batch_of(uneven_rows(4))
    logits, gradients = {}, {}
    for kernel in ("eager", "batched_mm", "grouped_mm"):
        model.set_experts_implementation(kernel)
        gradients[kernel] = gradients_of(model, batch)
        logits[kernel] = model.eval()(batch["input_ids"]).logits
    for kernel in ("batched_mm", "grouped_mm"):
        assert (logits[kernel] - logits["eager"]).abs().max() < 1e-5
        for key, gradient in gradients[kernel].items():
            assert (gradient - gradients["eager"][key]).abs().max() < 1e-5, (kernel, key)


@pytest.mark.parametrize("name", EXPERTS)
def test_b64_unfused_experts_agree_with_fused(name):
    model, batch = biased(**EXPERTS[name]), batch_of(uneven_rows(4))
    apart = unfused(model, router_bias=True, **EXPERTS[name])
    with torch.no_grad():
        assert (apart.eval()(batch["input_ids"]).logits - model.eval()(batch["input_ids"]).logits).abs().max() < 1e-5
    expected = unfused_state_dict(gradients_of(model, batch))
    for key, gradient in gradients_of(apart, batch).items():
        assert (gradient - expected[key]).abs().max() < 1e-5, key


@pytest.mark.parametrize("width", [6, 7, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_b64_widths_that_the_grouped_kernel_refuses(width, dtype):
    """torch's grouped_mm asks for rows of whole 16 bytes."""
    model, batch = biased(moe_intermediate_size=width, expert_bias=True).to(dtype), batch_of(uneven_rows(4))
    assert model.config._experts_implementation == "grouped_mm"
    gradients = gradients_of(model, batch)
    model.set_experts_implementation("eager")
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for key, gradient in gradients_of(model, batch).items():
        assert (gradient - gradients[key]).abs().max() <= tolerance * gradient.abs().max().clamp(min=1), key


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_under_activation_checkpointing(reentrant):
    model, batch = biased(router_balance="bias", num_shared_experts=1), batch_of(uneven_rows(4))
    expected = gradients_of(model, batch)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    for key, gradient in gradients_of(model, {**batch, "use_cache": False}).items():
        assert torch.equal(gradient, expected[key]), key


@pytest.mark.slow
def test_b45_two_ranks_with_disjoint_experts_finish(tmp_path):
    found = launch(tmp_path, "disjoint_experts")
    assert found["missing"] == []
    assert found["loads"][:, 2:].sum() == 0
    assert found["other"][:, :2].sum() == 0
    assert found["loads"].sum() == found["other"].sum() == 2 * 2 * 8 * 12 * 2
