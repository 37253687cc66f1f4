"""LoRA on packed weights: every packed Linear is reached, trains, merges by dequantising, and comes back bit for bit."""

import copy

import pytest
import torch
from peft import LoHaConfig, LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from hf_variants.quantize import AwqLinear, dequantize, quantize_awq, quantize_rtn, save_quantized
from tests.quantize.quantized import FITTING_EXPERTS, FITTING_MLA, calibration, fitting
from tests.variants import draw_ids, far

CASES = {
    "gqa": {},
    "attention_bias": {},
    "moe_shared_gate": FITTING_EXPERTS,
    "moe_mla": {**FITTING_MLA, "moe_intermediate_size": 32, "mlp_layer_types": ["dense", "sparse"]},
}


def loaded(directory, name="gqa", dtype=torch.float32):
    save_quantized(quantize_awq(fitting(name, **CASES[name]), calibration(8), group_size=32), directory)
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


def adapted(model, **options):
    result = get_peft_model(model, LoraConfig(**{"r": 4, "target_modules": "all-linear", **options}))
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    return result.eval()


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits


@pytest.mark.parametrize("name", CASES)
def test_all_linear_reaches_every_packed_matrix_and_merging_keeps_the_logits(name, tmp_path):
    model, ids = loaded(tmp_path / "q", name), draw_ids(2, 16)
    packed = {n for n, module in model.named_modules() if isinstance(module, AwqLinear)}
    before, plain = copy.deepcopy(model).state_dict(), logits_of(model, ids)
    live = adapted(model)
    reached = {n.removeprefix("base_model.model.").split(".lora_A")[0] for n, _ in live.named_parameters() if ".lora_A" in n}
    assert reached == packed
    expected = logits_of(live, ids)
    assert far(expected, plain) > 0.01
    live.save_pretrained(tmp_path / "adapter")
    live.merge_adapter()
    assert far(logits_of(live, ids), expected) < 1e-5 * max(1.0, expected.abs().max().item())
    live.unmerge_adapter()
    assert torch.equal(logits_of(live, ids), expected)
    merged = live.merge_and_unload()
    assert far(logits_of(merged, ids), expected) < 1e-5 * max(1.0, expected.abs().max().item())
    assert not any(isinstance(module, AwqLinear) for module in merged.modules())
    merged.save_pretrained(tmp_path / "merged")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert far(logits_of(again, ids), expected) < 1e-5 * max(1.0, expected.abs().max().item())
    assert (getattr(again.config, "quantization_config", None) is None) == ("moe" not in name)
    dense = dequantize(merged)
    assert far(logits_of(dense, ids), expected) < 1e-5 * max(1.0, expected.abs().max().item())
    dense.save_pretrained(tmp_path / "dense")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "dense")
    assert far(logits_of(again, ids), expected) < 1e-5 * max(1.0, expected.abs().max().item())
    fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32)
    assert all(torch.equal(before[key], tensor) for key, tensor in fresh.state_dict().items())
    assert torch.equal(logits_of(PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval(), ids), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_train_and_the_packed_weights_stay(dtype, tmp_path):
    model, ids = loaded(tmp_path / "q", "moe_shared_gate", dtype), draw_ids(4, 16)
    before = {
        key: tensor.clone() for key, tensor in model.state_dict().items() if key.endswith(("qweight", "qzeros", "scales"))
    }
    live = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear")).train()
    optimizer = torch.optim.AdamW([p for p in live.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = live(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.1
    state = {key.replace("base_model.model.", "").replace(".base_layer", ""): t for key, t in live.state_dict().items()}
    assert all(torch.equal(state[key], tensor) for key, tensor in before.items())
    merged = live.eval().merge_and_unload()
    assert merged(input_ids=ids).logits.dtype == dtype


def test_gradients_equal_those_of_the_dense_model(tmp_path):
    model, ids = loaded(tmp_path / "q"), draw_ids(2, 16)
    gradients = []
    for base in (model, dequantize(model)):
        torch.manual_seed(0)
        live = adapted(base)
        live(input_ids=ids, labels=ids).loss.backward()
        gradients.append({n: p.grad for n, p in live.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and len(gradients[0]) == 28
    assert all(far(gradients[0][n], gradients[1][n]) < 1e-5 for n in gradients[0])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LoraConfig(target_modules="all-linear", init_lora_weights="pissa"), "init_lora_weights='pissa' changes the frozen"),
        (LoraConfig(target_modules=["q_proj"], use_dora=True), "use_dora=True needs the norms"),
        (LoHaConfig(target_modules=["q_proj"]), "cannot adapt packed weights"),
    ],
)
def test_what_cannot_adapt_packed_weights_is_refused(config, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        get_peft_model(loaded(tmp_path / "q"), config)


@pytest.mark.parametrize("name", CASES)
def test_dequantised_models_have_the_logits_of_the_packed(name):
    result, ids = quantize_rtn(fitting(name, **CASES[name]), group_size=32), draw_ids(2, 16)
    dense = dequantize(result.model)
    assert getattr(dense.config, "quantization_config", None) is None
    expected = logits_of(result.model, ids)
    assert far(logits_of(dense, ids), expected) < 1e-5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("qk_norm", ["none", "head"])
def test_absorbed_decoding_reads_a_packed_expansion(qk_norm):
    model = fitting("mla", **FITTING_MLA, qk_norm=qk_norm)
    packed = quantize_rtn(model, group_size=32).model
    dense, ids = dequantize(packed), draw_ids(2, 12)
    attention = packed.model.layers[0].self_attn
    assert isinstance(attention.kv_b_proj, AwqLinear) and attention._absorbs(object(), 1)
    steps = []
    for each in (packed, dense):
        with torch.no_grad():
            cache = each(ids[:, :6], use_cache=True).past_key_values
            steps.append(torch.cat([each(ids[:, [t]], past_key_values=cache).logits for t in range(6, 12)], dim=1))
    assert far(steps[0], steps[1]) < 1e-5
    assert far(steps[0], logits_of(packed, ids)[:, 6:]) < 1e-5
