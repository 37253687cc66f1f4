"""B20: a 4-bit load reaches the routed experts, which are fused on disk; routers stay as they are."""

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tests.training_model.support import sparse_model, uneven_rows

functional = pytest.importorskip("bitsandbytes.functional")

WIDE = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64, "router_balance": "bias"}
EXPERTS = {
    "gated": {},
    "gated_bias": {"expert_bias": True},
    "plain": {"mlp_type": "plain", "hidden_act": "gelu"},
    "plain_bias": {"mlp_type": "plain", "hidden_act": "gelu", "expert_bias": True},
}


def saved(directory, **options):
    model = sparse_model(**WIDE, num_shared_experts=1, mlp_layer_types=["dense", "sparse"], **options).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    model.save_pretrained(directory)
    return model


def in_4bit(directory, **options):
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32, **options
    )
    return AutoModelForCausalLM.from_pretrained(directory, quantization_config=quantization, dtype=torch.float32)


def expert_matrices(model):
    """Every matrix of the fused experts of layer 1, under the name of its Linear."""
    experts = model.model.layers[1].mlp.experts
    fused = dict(experts.named_parameters())
    names = [("gate_up_proj", ("gate_proj", "up_proj")), ("up_proj", ("up_proj",)), ("down_proj", ("down_proj",))]
    return {
        f"{index}.{part}": matrix
        for name, parts in names
        if name in fused
        for index, expert in enumerate(fused[name])
        for part, matrix in zip(parts, expert.chunk(len(parts)), strict=True)
    }


@pytest.mark.parametrize("name", EXPERTS)
def test_b20_every_expert_is_in_4_bit(tmp_path, name):
    model = saved(tmp_path, **EXPERTS[name])
    loaded = in_4bit(tmp_path)
    matrices = expert_matrices(model)
    assert len(matrices) == (12 if name.startswith("gated") else 8)
    for key, matrix in matrices.items():
        weight = loaded.get_parameter(f"model.layers.1.mlp.experts.{key}.weight")
        codes, state = functional.quantize_4bit(matrix.detach().contiguous(), quant_type="nf4")
        assert weight.dtype == torch.uint8
        assert torch.equal(weight.data.flatten(), codes.flatten()), key
        assert torch.equal(weight.quant_state.absmax, state.absmax), key
    dense = {key for key, parameter in loaded.named_parameters() if parameter.dim() > 1 and parameter.dtype != torch.uint8}
    assert dense == {"model.embed_tokens.weight", "lm_head.weight", "model.layers.1.mlp.gate.weight"}


@pytest.mark.parametrize("name", EXPERTS)
def test_b20_experts_left_dense_on_request_are_equal(tmp_path, name):
    model = saved(tmp_path, **EXPERTS[name])
    loaded = in_4bit(tmp_path, llm_int8_skip_modules=["model.layers.1.mlp.experts", "lm_head"])
    for key, matrix in expert_matrices(model).items():
        assert torch.equal(loaded.get_parameter(f"model.layers.1.mlp.experts.{key}.weight"), matrix), key


def test_b20_saved_and_loaded_again(tmp_path):
    saved(tmp_path / "whole")
    loaded = in_4bit(tmp_path / "whole")
    loaded.save_pretrained(tmp_path / "small")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    ids = torch.stack([row["input_ids"] for row in uneven_rows()])
    with torch.no_grad():
        for model in (loaded, again):  # bitsandbytes repacks its codes in the first forward on a CPU
            model(ids)
        assert torch.equal(again(ids).logits, loaded(ids).logits)


def test_b20_without_a_quantizer_experts_stay_fused(tmp_path):
    model = saved(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
