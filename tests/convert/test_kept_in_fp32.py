"""Half-precision models that hold some weights in fp32: every such weight survives each way through memory and disk."""

import pytest
import torch
from native_cases import CASES, native_config, native_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.convert import config_from_native, config_to_native, convert_checkpoint, from_native, to_native
from hf_variants.convert.heads import native_class
from hf_variants.convert.skeletons import loaded_dtypes, skeleton
from hf_variants.convert.stages import same_bits
from tests.convert.bits import assert_same_bits

# family -> parts of the names of what its class holds in fp32
KEPT = {
    "deepseek_v3": ("e_score_correction_bias",),
    "axk1": ("e_score_correction_bias",),
    "kolibri1": ("e_score_correction_bias",),
    "hy_v3": ("e_score_correction_bias",),
    "ernie4_5_moe": ("mlp.gate.weight", "moe_statics"),
    "hunyuan_v1_moe": ("mlp.gate.wg.weight",),
    "flint": ("mlp.gate.weight", "sinks"),
}
# Held in half precision natively, in fp32 here.
ONLY_OURS = {"minimax_m2", "afmoe"}
FIRST = dict(reversed(CASES))


def _half(family):
    """A bfloat16 model whose fp32 weights are not those that bfloat16 can hold."""
    native = native_model(family, FIRST[family]).to(torch.bfloat16)
    state = native.state_dict()
    kept = [name for name in state if any(part in name for part in KEPT[family])]
    assert kept
    for name in kept:
        path, _, leaf = name.rpartition(".")
        owner, value = native.get_submodule(path), torch.randn(state[name].shape) / 3
        if leaf in owner._parameters:
            owner._parameters[leaf] = torch.nn.Parameter(value)
        else:
            owner._buffers[leaf] = value
    return native, kept


@pytest.mark.parametrize("family", KEPT)
def test_through_disk_and_back(family, tmp_path):
    native, kept = _half(family)
    native.save_pretrained(tmp_path / "native")
    before = load_file(tmp_path / "native" / "model.safetensors")
    ours = from_native(native)
    convert_checkpoint(tmp_path / "native", tmp_path / "streamed")
    ours.save_pretrained(tmp_path / "saved")
    for folder in ("streamed", "saved"):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        assert loaded.dtype == torch.bfloat16
        assert_same_bits(ours.state_dict(), loaded.state_dict())
        assert_same_bits(native.state_dict(), to_native(loaded).state_dict())
    convert_checkpoint(tmp_path / "streamed", tmp_path / "back")
    assert_same_bits(before, load_file(tmp_path / "back" / "model.safetensors"))


@pytest.mark.parametrize("family", sorted(ONLY_OURS))
def test_a_bias_that_natively_is_half_comes_back_half(family, tmp_path):
    native_model(family, FIRST[family]).to(torch.bfloat16).save_pretrained(tmp_path / "native")
    convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    assert_same_bits(load_file(tmp_path / "native" / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors"))


@pytest.mark.parametrize("family", sorted(FIRST))
def test_ours_keeps_what_the_native_class_keeps(family):
    config = native_config(family, FIRST[family])
    native = skeleton(native_class(config, "causal_lm"), config, torch.bfloat16)
    ours = skeleton(VariantsForCausalLM, config_from_native(config), torch.bfloat16)
    counts = []
    for model in (native, ours):
        dtype_of = loaded_dtypes(model, torch.bfloat16)
        counts.append(sum(dtype_of(name) == torch.float32 for name in model.state_dict()))
    assert (counts[0] > 0) == (family in KEPT) or family in {"dots1", "exaone_moe", "glm4_moe", "glm4_moe_lite", "solar_open"}
    assert counts[1] == counts[0] or family in ONLY_OURS


def test_a_dtype_asked_for_leaves_them(tmp_path):
    native = native_model("ernie4_5_moe", FIRST["ernie4_5_moe"])
    dtypes = {name: tensor.dtype for name, tensor in from_native(native, dtype=torch.bfloat16).state_dict().items()}
    native.save_pretrained(tmp_path / "native")
    convert_checkpoint(tmp_path / "native", tmp_path / "ours", dtype="bfloat16")
    stored = load_file(tmp_path / "ours" / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in stored.items()} == {name: dtypes[name] for name in stored}
    assert {name for name, dtype in dtypes.items() if dtype == torch.float32} == {
        name for name in dtypes if "mlp.gate." in name
    }


def test_families_without_such_weights_cannot_express_them():
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_experts": 4}
    config = VariantsConfig(**sizes, qk_norm="head", moe_intermediate_size=16, router_weight_in_fp32=True)
    with pytest.raises(ValueError, match="qwen3_moe cannot express router_weight_in_fp32=True"):
        config_to_native(config, "qwen3_moe")
    model = VariantsForCausalLM._from_config(config, dtype=torch.bfloat16)
    kept = {name for name, tensor in model.state_dict().items() if tensor.dtype == torch.float32}
    assert kept == {f"model.layers.{index}.mlp.gate.weight" for index in range(2)}
    ids = torch.arange(8)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    assert model.model.layers[0].mlp.gate.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("family", ["deepseek_v3", "minimax_m2", "glm4_moe", "ernie4_5_moe"])
def test_in_memory_every_weight_comes_back_in_its_dtype(family, tmp_path):
    native_model(family, FIRST[family]).to(torch.bfloat16).save_pretrained(tmp_path)
    native = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    back = to_native(from_native(native)).state_dict()
    assert all(same_bits(tensor, back[name]) for name, tensor in native.state_dict().items())
