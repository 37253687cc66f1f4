"""Errors of quantized Linears are those that direct measurement gives, whatever scales AWQ moved."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hf_variants import cli
from hf_variants.quantize import quantization_quality, quantize_checkpoint
from hf_variants.quantize.quality import dense_weight
from tests.quantize.quantized import FITTING_EXPERTS, FITTING_MLA, calibration, fitting
from tests.variants import draw_ids

MEMBERS = {"gqa": {}, "mla_q_lora": FITTING_MLA, "moe_shared": FITTING_EXPERTS, "rmsnorm_unit_offset": {}, "parallel": {}}
QUICK = ("mla_q_lora", "moe_shared")


def written(tmp_path, name="gqa", method="awq", **options):
    """(source folder, quantized folder) of a small model whose inputs are uneven, so that AWQ has scales to move."""
    torch.manual_seed(0)
    model = fitting(name, **MEMBERS.get(name, {}))
    with torch.no_grad():
        for layer in model.model.layers:
            for norm in (part for part in (layer.input_layernorm, getattr(layer, "post_attention_layernorm", None)) if part):
                norm.weight += torch.linspace(0, 3, norm.weight.numel())[torch.randperm(norm.weight.numel())]
    model.save_pretrained(tmp_path / "full")
    if method == "awq":
        options = {"calibration": calibration(), "calibration_length": 32, **options}
    quantize_checkpoint(tmp_path / "full", tmp_path / "small", method=method, group_size=32, **options)
    return tmp_path / "full", tmp_path / "small"


def outputs_of_first_attention(model, ids):
    """{projection: outputs} of the first layer, whose input no quantization has touched yet."""
    found, attention = {}, model.model.layers[0].self_attn
    names = [name for name in ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa") if hasattr(attention, name)]
    hooks = [
        getattr(attention, name).register_forward_hook(lambda _, args, out, name=name: found.__setitem__(name, out.float()))
        for name in names
    ]
    with torch.no_grad():
        model(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in MEMBERS if name not in QUICK)]
)
def test_weighted_errors_are_those_of_real_outputs(tmp_path, name):
    full, small = written(tmp_path, name)
    ids = draw_ids(4, 32)
    facts = quantization_quality(full, small, ids, length=32)
    assert json.loads(json.dumps(facts)) == facts and facts["tokens"] == 128 and facts["method"] == "awq"
    source = AutoModelForCausalLM.from_pretrained(full, dtype=torch.float32)
    packed = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32)
    before, after = outputs_of_first_attention(source, ids), outputs_of_first_attention(packed, ids)
    entries = {entry["name"]: entry for entry in facts["linears"]}
    for part, expected in before.items():
        entry = entries[f"model.layers.0.self_attn.{part}"]
        if part == "v_proj":
            continue  # its rows may be divided for o_proj, which multiplies them back
        measured = float((after[part] - expected).square().sum() / expected.square().sum())
        assert entry["weighted_error"] == pytest.approx(measured, rel=1e-2)
        assert entry["scales"] == "exact"
    assert all(0 < entry["error"] < 0.3 for entry in facts["linears"]), "moved scales were not brought back"
    assert facts["overall"]["weighted_error"] < facts["overall"]["error"] ** 2 * 2


@pytest.mark.slow
def test_rounding_is_the_distance_of_the_weights(tmp_path):
    full, small = written(tmp_path, method="rtn", leave_unquantized=["model.layers.1.mlp.*"])
    facts = quantization_quality(full, small)
    source = AutoModelForCausalLM.from_pretrained(full, dtype=torch.float32)
    packed = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32)
    for entry in facts["linears"]:
        weight = source.get_submodule(entry["name"]).weight
        difference = dense_weight(packed.get_submodule(entry["name"])) - weight
        assert entry["error"] == pytest.approx(float(difference.norm() / weight.norm()), rel=1e-5)
        assert entry["snr_db"] == pytest.approx(-20 * math.log10(entry["error"])) and entry["weighted_error"] is None
        assert entry["scales"] == "none"
    assert facts["left_dense"] == [f"model.layers.1.mlp.{part}_proj" for part in ("gate", "up", "down")]
    assert [row["layer"] for row in facts["layers"]] == [0, 1] and facts["tokens"] == 0


@pytest.mark.slow
def test_awq_beats_rounding_where_it_counts(tmp_path):
    ids = calibration()
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    aware = quantization_quality(*written(tmp_path / "a"), ids, length=32)["overall"]
    nearest = quantization_quality(*written(tmp_path / "b", method="rtn"), ids, length=32)["overall"]
    assert aware["weighted_error"] < nearest["weighted_error"]


@pytest.mark.parametrize("scheme", ["nf4", "nf4-double", "int8"])
def test_bitsandbytes_while_loading_and_from_a_folder(tmp_path, scheme):
    pytest.importorskip("bitsandbytes")
    from hf_variants.quantize.bits_and_bytes import load_in_bitsandbytes

    fitting(intermediate_size=128).save_pretrained(tmp_path / "full")
    ids = draw_ids(2, 16)
    facts = quantization_quality(tmp_path / "full", scheme, ids, length=16)
    load_in_bitsandbytes(tmp_path / "full", scheme).save_pretrained(tmp_path / "small")
    again = quantization_quality(tmp_path / "full", tmp_path / "small", ids, length=16)
    assert [entry["error"] for entry in again["linears"]] == pytest.approx([entry["error"] for entry in facts["linears"]])
    low, high = (0.002, 0.02) if scheme == "int8" else (0.05, 0.15)
    assert low < facts["overall"]["error"] < high and len(facts["linears"]) == 14 and not facts["left_dense"]


@pytest.mark.slow
def test_a_native_source(tmp_path):
    shape = {"vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape, max_position_embeddings=64)).save_pretrained(tmp_path / "llama")
    quantize_checkpoint(tmp_path / "llama", tmp_path / "q", method="rtn", group_size=32, to="native")
    facts = quantization_quality(tmp_path / "llama", tmp_path / "q", draw_ids(2, 16), length=16)
    assert len(facts["linears"]) == 14 and 0.05 < facts["overall"]["error"] < 0.15


def test_what_cannot_be_compared(tmp_path):
    full, small = written(tmp_path, method="rtn")
    with pytest.raises(ValueError, match="already quantised"):
        quantization_quality(small, small)
    with pytest.raises(ValueError, match="is not quantized: its config has no quantization_config"):
        quantization_quality(full, full)
    with pytest.raises(ValueError, match=r"no config found at .*or one of \['nf4'"):
        quantization_quality(full, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="outside"):
        quantization_quality(full, small, torch.full((1, 8), 99))
    fitting(num_hidden_layers=1).save_pretrained(tmp_path / "shallow")
    with pytest.raises(ValueError, match=r"quantized Linears that the source has not: \['model.layers.1"):
        quantization_quality(tmp_path / "shallow", small)
    fitting(intermediate_size=64).save_pretrained(tmp_path / "narrow")
    with pytest.raises(ValueError, match=r"mlp.gate_proj is \[96, 64\] in the quantized checkpoint and \[64, 64\]"):
        quantization_quality(tmp_path / "narrow", small)
    (small / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be loaded whole"):
        quantization_quality(full, small)


def command(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        cli.main(["quality-of-quantization", *map(str, words)])
    printed = capsys.readouterr()
    return stop.value.code, printed.out, " ".join(printed.err.split())


def test_command_line(tmp_path, capsys):
    full, small = written(tmp_path, method="rtn")
    plot = tmp_path / "quality.png"
    code, out, _ = command(capsys, full, small, "--json", "--plot", plot)
    assert code == 0 and json.loads(out) == quantization_quality(str(full), str(small)) and plot.read_bytes()[:4] == b"\x89PNG"
    code, out, _ = command(capsys, full, small, "--worst", "3")
    assert code == 0 and "largest errors" in out and "layer 1" in out
    code, _, err = command(capsys, full, small, "--worst", "0")
    assert code == 2 and "--worst 0" in err
    for name in ("window", "max-tokens"):
        code, _, err = command(capsys, full, small, f"--{name}", "64")
        assert code == 2 and f"{name.replace('-', '_')}=64 is of the text" in err
    (tmp_path / "text.txt").write_text("In the beginning\n\nwas a word.\n")
    for words in (("--window", "0"), ("--window", "64", "--max-tokens", "32"), ("--max-tokens", "-1")):
        code, _, err = command(capsys, full, small, "--calibration", tmp_path / "text.txt", *words)
        assert code == 2 and "must hold a row of window=" in err
    code, _, err = command(capsys, full, full)
    assert code == 2 and "is not quantized" in err
