"""Sources whose weights are packed: quantized checkpoints of ours and native ones, on request."""

import json

import pytest
import torch
from native_cases import native_model, token_ids
from transformers import AutoModelForCausalLM

from hf_variants.convert import convert_checkpoint, verify_checkpoint
from hf_variants.convert.stages import same_bits
from hf_variants.quantize import quantize_checkpoint

_WIDTHS = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"), [("llama", "tied_biased"), pytest.param("mixtral", "plain", marks=pytest.mark.slow)]
)
@torch.no_grad()
def test_quantized_checkpoint_of_ours_becomes_a_dense_native_one(family, name, tmp_path):
    native_model(family, name, **_WIDTHS).save_pretrained(tmp_path / "native")
    quantize_checkpoint(tmp_path / "native", tmp_path / "packed", method="rtn", group_size=32, dtype=torch.float32)
    with pytest.raises(ValueError, match="quantized weights .*'awq'.*ask for dequantize"):
        convert_checkpoint(tmp_path / "packed", tmp_path / "out")
    report = convert_checkpoint(tmp_path / "packed", tmp_path / "out", dequantize=True)
    assert report["source"]["dequantized"] and report["left"] == ["quantization_report.json"]
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    packed, native = (AutoModelForCausalLM.from_pretrained(tmp_path / part, dtype="float32") for part in ("packed", "out"))
    assert type(native).__name__ == type(native_model(family, name)).__name__
    ids = token_ids(1, 9)
    assert (packed(input_ids=ids).logits - native(input_ids=ids).logits).abs().max().item() <= 1e-4
    assert verify_checkpoint(tmp_path / "out")["proof"]["weights"] == report["proof"]["weights"]


@torch.no_grad()
def test_block_fp8_as_deepseek_is_published(tmp_path):
    """A real layout: fp8 blocks of 128 x 128 with one inverse scale each, unpacked while transformers loads."""
    from safetensors.torch import load_file, save_file

    source = tmp_path / "native"
    widths = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 32}
    native_model("llama", "plain", **widths, num_key_value_heads=4).to(torch.bfloat16).save_pretrained(source)
    packed = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if "_proj." not in name:
            packed[name] = tensor
            continue
        scale = tensor.float().abs().max() / 448
        packed[name] = (tensor.float() / scale).to(torch.float8_e4m3fn)
        packed[name.replace("weight", "weight_scale_inv")] = scale.reshape(1, 1)
    save_file(packed, source / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    (source / "config.json").write_text(json.dumps({**config, "quantization_config": fp8}))
    with pytest.raises(ValueError, match="quantized weights .*'fp8'"):
        convert_checkpoint(source, tmp_path / "out")
    report = convert_checkpoint(source, tmp_path / "out", dequantize=True)
    assert report["dtype"] == "bfloat16"
    name = "model.layers.1.mlp.up_proj.weight"
    expected = (packed[name].float() * packed[name.replace("weight", "weight_scale_inv")]).to(torch.bfloat16)
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")[name], expected)


def test_formats_that_nothing_here_unpacks(tmp_path):
    native_model("llama", "plain").save_pretrained(tmp_path / "native")
    path = tmp_path / "native" / "config.json"
    keys = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": keys}))
    with pytest.raises(ValueError, match="the weights of .* cannot be unpacked here"):
        convert_checkpoint(tmp_path / "native", tmp_path / "out", dequantize=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["native"]


@pytest.mark.parametrize(("method", "to"), [("rtn", "native"), pytest.param("int8", "variants", marks=pytest.mark.slow)])
@torch.no_grad()
def test_packed_matrices_are_unpacked_one_by_one(method, to, tmp_path):
    """One dense matrix is alive at a time, and every bit is that of the layers which loading builds."""
    import weakref

    from hf_variants.convert.sides import packed_side

    native_model("llama", "tied_biased", **_WIDTHS).save_pretrained(tmp_path / "native")
    quantize_checkpoint(tmp_path / "native", tmp_path / "packed", method=method, group_size=32, to=to)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "packed", dtype=torch.bfloat16)
    side, alive, packed = packed_side(tmp_path / "packed", torch.bfloat16), [], 0
    assert side.is_ours == (to == "variants") and "quantization_config" not in side.config.to_dict()
    for name in side.weights:
        alive.append(weakref.ref(side.weights[name]))
        assert sum(ref() is not None for ref in alive) <= 1
    for name, tensor in side.weights.items():
        module = model.get_submodule(name.rpartition(".")[0])
        is_packed = name.endswith(".weight") and hasattr(module, "to_codes")
        expected = module.dequantize(torch.bfloat16) if is_packed else model.state_dict()[name]
        assert same_bits(tensor, expected), name
        packed += is_packed
    assert packed == 7 * side.config.num_hidden_layers


def _spoiled(folder, spoil):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("down_proj.scales"))
    spoil(tensors, name)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda tensors, name: tensors.pop(name), r"down_proj.scales'\] are missing beside .*down_proj.qweight"),
        (lambda tensors, name: tensors.update({name: tensors[name][:1].clone()}), r"shape \[1, 64\] instead of the \[2, 64\]"),
    ],
)
def test_parts_of_a_matrix_that_do_not_fit(spoil, said, tmp_path):
    native_model("llama", "plain", **_WIDTHS, num_hidden_layers=1).save_pretrained(tmp_path / "native")
    quantize_checkpoint(tmp_path / "native", tmp_path / "packed", method="rtn", group_size=32)
    _spoiled(tmp_path / "packed", spoil)
    with pytest.raises(ValueError, match=said):
        convert_checkpoint(tmp_path / "packed", tmp_path / "out", dequantize=True)
    assert not (tmp_path / "out").exists()
