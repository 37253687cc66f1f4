"""Quantized checkpoints load with trust_remote_code alone: equal outputs without hf_variants, and saved again bitwise."""

import json

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

import hf_variants
from hf_variants.quantize import quantize_int8, quantize_rtn, save_quantized
from hf_variants.quantize.formats import PACKED_TENSORS
from tests.hub.clean import run_script
from tests.hub.load_clean import outputs
from tests.hub.test_b19_clean_process import room
from tests.quantize.quantized import FITTING, FITTING_EXPERTS, FITTING_MLA, fitting
from tests.variants import build, draw_ids, tiny

MOE_MLA = {**FITTING_MLA, "moe_intermediate_size": 32, "mlp_layer_types": ["dense", "sparse"]}


def masked():
    return build(tiny("sliding", **FITTING, is_causal=False), hf_variants.VariantsForMaskedLM)


def rounded(model):
    return quantize_rtn(model, group_size=32)


# name -> (model, Auto class that loads it, dtype, what packs it); few rows, so that bfloat16 takes torch's int4 kernels
CASES = {
    "tied": (lambda: fitting("tied"), AutoModelForCausalLM, "float32", rounded),
    "tied_base": (lambda: fitting("tied"), AutoModel, "float32", rounded),
    "attention_bias": (lambda: fitting("attention_bias"), AutoModelForCausalLM, "bfloat16", rounded),
    "moe": (lambda: fitting("moe_shared_gate", **FITTING_EXPERTS), AutoModelForCausalLM, "bfloat16", rounded),
    "moe_mla": (lambda: fitting("moe_mla", **MOE_MLA), AutoModelForCausalLM, "float32", rounded),
    "masked": (masked, AutoModelForMaskedLM, "float32", rounded),
    "int8": (lambda: fitting("attention_bias"), AutoModelForCausalLM, "bfloat16", quantize_int8),
    "int8_moe_mla": (lambda: fitting("moe_mla", **MOE_MLA), AutoModelForCausalLM, "float32", quantize_int8),
}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    loads, ids = {}, draw_ids(1, 8)
    for name, (make, auto, dtype, pack) in CASES.items():
        save_quantized(pack(make()), folder / name)
        expected = outputs(auto.from_pretrained(folder / name, dtype=dtype).eval(), ids)
        save_file({"ids": ids, "outputs": expected}, folder / f"{name}.safetensors")
        spec = {"auto": auto.__name__, "path": str(folder / name), "expected": str(folder / f"{name}.safetensors")}
        loads[name] = {**spec, "kwargs": {"dtype": dtype}}
    resave = {name: str(folder / f"{name}_again") for name in CASES if name != "tied_base"}
    return {**run_script("load_clean.py", {"loads": loads, "resave": resave}, folder), "folder": folder}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_equal_outputs_without_the_package(clean, name):
    assert not clean["has_package"]
    assert clean["differences"][name] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name != "tied_base"])
def test_saved_again_is_bitwise_the_same_and_brings_the_room(clean, name):
    first, second = clean["folder"] / name, clean["folder"] / f"{name}_again"
    tensors = [load_file(path / "model.safetensors") for path in (first, second)]
    packed = [key for key in tensors[0] if key.endswith(("qweight", "weight_packed"))]
    assert packed and tensors[0].keys() == tensors[1].keys()
    for key in tensors[0]:
        # what is dense is stored in what the model was loaded in
        if key.rpartition(".")[2] in PACKED_TENSORS:
            assert tensors[0][key].dtype == tensors[1][key].dtype
        assert tensors[0][key].equal(tensors[1][key].to(tensors[0][key].dtype)), key
    settings = [json.loads((path / "config.json").read_text())["quantization_config"] for path in (first, second)]
    assert settings[0] == settings[1]
    assert {path.name for path in second.glob("*.py")} == room()
