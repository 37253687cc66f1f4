"""bitsandbytes packs every matrix of every layer, is counted, and is bitwise the same after a save."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hf_variants.quantize import quantize_rtn, save_quantized
from hf_variants.quantize.bits_and_bytes import SCHEMES, load_in_bitsandbytes, quantized_counts
from tests.quantize.quantized import FITTING_MLA, fitting
from tests.variants import draw_ids

pytest.importorskip("bitsandbytes")

WIDE = {"intermediate_size": 128}
WIDE_MLA = {**FITTING_MLA, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 32}
MEMBERS = {
    "tied": {},
    "mla_q_lora": WIDE_MLA,
    "moe_shared_gate": {"moe_intermediate_size": 64},
    "moe_plain_bias": {"moe_intermediate_size": 64},
    "moe_mla": {**WIDE_MLA, "moe_intermediate_size": 64, "mlp_layer_types": ["dense", "sparse"]},
}


def layer_weights(model):
    """Weights of all matrices in the layers but routers' and shared experts' gates."""
    named = model.model.layers.named_parameters()
    return sum(
        p.numel() for n, p in named if p.dim() > 1 and not n.endswith(("mlp.gate.weight", "_bias", "expert_gate.weight"))
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", MEMBERS)
def test_every_matrix_is_packed_and_a_save_is_bitwise(name, scheme, tmp_path):
    model = fitting(name, **WIDE, **MEMBERS[name])
    model.save_pretrained(tmp_path / "full")
    packed = load_in_bitsandbytes(tmp_path / "full", scheme)
    counts = quantized_counts(packed)
    assert counts["parameters"] == layer_weights(model)
    assert {n.rpartition("mlp.")[2] for n in counts["dense"]} <= {"gate", "shared_expert_gate"}
    packed.save_pretrained(tmp_path / "small")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    again.save_pretrained(tmp_path / "again")
    first, second = (load_file(tmp_path / part / "model.safetensors") for part in ("small", "again"))
    assert first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
    ids = draw_ids(2, 12)
    with torch.no_grad():
        for each in (packed, again):
            each(ids)  # codes are repacked in the first forward on a CPU
        logits = packed(ids).logits
        assert torch.equal(again(ids).logits, logits)
        expected = model(ids).logits
    # int8 keeps far more than nf4; outputs that have nothing in common would give about 2
    assert float((logits - expected).square().mean() / expected.square().mean()) < (0.05 if scheme == "int8" else 0.4)


def test_what_stays_dense_unasked_is_an_error(tmp_path, monkeypatch):
    fitting().save_pretrained(tmp_path / "full")
    with pytest.raises(
        ValueError,
        match=r"multiples of 64 and output widths that are multiples of 32, which those of \['model.layers.0.mlp.down_proj'",
    ):
        load_in_bitsandbytes(tmp_path / "full")
    fitting(**WIDE).save_pretrained(tmp_path / "full")
    skipped = load_in_bitsandbytes(tmp_path / "full", skip=["down_proj"])
    assert quantized_counts(skipped)["dense"] == [f"layers.{n}.mlp.down_proj" for n in (0, 1)]
    from transformers import BitsAndBytesConfig

    original = BitsAndBytesConfig.__init__

    def forgetful(self, *args, llm_int8_skip_modules=None, **kwargs):
        original(self, *args, llm_int8_skip_modules=[*llm_int8_skip_modules, "up_proj"], **kwargs)

    monkeypatch.setattr(BitsAndBytesConfig, "__init__", forgetful)
    with pytest.raises(ValueError, match=r"left 2 matrices of the layers dense: \['layers.0.mlp.up_proj'"):
        load_in_bitsandbytes(tmp_path / "full")


def test_an_unknown_scheme_names_the_known(tmp_path):
    with pytest.raises(ValueError, match=r"scheme='int4' is unknown; choose from \['nf4', 'nf4-double', 'int8'\]"):
        load_in_bitsandbytes(tmp_path, "int4")


def test_a_checkpoint_that_is_quantised_already_or_absent_is_said(tmp_path):
    save_quantized(quantize_rtn(fitting(), group_size=32), tmp_path / "packed")
    with pytest.raises(ValueError, match=r"already quantised \(quant_method='awq'\)"):
        load_in_bitsandbytes(tmp_path / "packed")
    with pytest.raises(ValueError, match="no config found at"):
        load_in_bitsandbytes(tmp_path / "absent")
