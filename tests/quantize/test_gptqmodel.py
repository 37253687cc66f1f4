"""What this package writes, loaded on the kernels of gptqmodel, by the interpreter that HF_VARIANTS_GPTQMODEL_PYTHON names."""

import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.quantize import quantize_checkpoint
from tests.variants import draw_ids, randomise

_PYTHON = "HF_VARIANTS_GPTQMODEL_PYTHON"
_SHAPE = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
# name -> toggles, in widths that gptqmodel's kernels take
MEMBERS = {
    "gqa": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "experts": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_shared_experts": 1},
    "biased": {"attention_bias": True, "mlp_bias": True, "mlp_type": "plain", "hidden_act": "gelu"},
}
_LOAD = """
import sys
import hf_variants, torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
folder, ids, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cpu").eval()
layers = [type(part).__module__ for part in model.modules() if hasattr(part, "qweight")]
assert layers and all(module.startswith("gptqmodel") for module in layers), layers
with torch.no_grad():
    save_file({"logits": model(load_file(ids)["ids"]).logits.float()}, out)
"""


@pytest.mark.slow
@pytest.mark.skipif(_PYTHON not in os.environ, reason=f"{_PYTHON} names no interpreter")
@pytest.mark.parametrize("name", MEMBERS)
def test_gptqmodel_computes_what_the_codes_say(name, tmp_path):
    model = randomise(VariantsForCausalLM(VariantsConfig(**_SHAPE, **MEMBERS[name])))
    model.save_pretrained(tmp_path / "full")
    quantize_checkpoint(tmp_path / "full", tmp_path / "q", method="rtn", group_size=32)
    ids = draw_ids(2, 12, vocab=64)
    save_file({"ids": ids}, tmp_path / "ids.safetensors")
    command = [os.environ[_PYTHON], "-c", _LOAD]
    command += [str(tmp_path / part) for part in ("q", "ids.safetensors", "logits.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = load_file(tmp_path / "logits.safetensors")["logits"]
    load = VariantsForCausalLM.from_pretrained
    with torch.no_grad():
        exact, mine = (
            load(tmp_path / "q", dtype=dtype).eval()(ids).logits.float() for dtype in (torch.float32, torch.bfloat16)
        )
    # bfloat16 rounds in another order there, and hardly more than on our own layers
    assert (theirs - exact).abs().mean() <= 1.5 * (mine - exact).abs().mean() <= 0.02 * exact.abs().max()
