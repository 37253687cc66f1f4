"""Experts taken apart compute the same, and fuse back to bitwise equal weights."""

import pytest
import torch

from hf_variants.finetune import fuse_experts, split_experts
from tests.training_model.support import sparse_model
from tests.training_model.test_b20_bitsandbytes import EXPERTS


@pytest.mark.parametrize("name", EXPERTS)
def test_there_and_back(name):
    model = sparse_model(**EXPERTS[name]).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.normal_()
    ids, before = torch.arange(1, 13).view(1, 12), {key: value.clone() for key, value in model.state_dict().items()}
    expected = model(ids).logits
    assert split_experts(model) == 2 and split_experts(model) == 0
    assert any(".experts.3.down_proj.weight" in key for key in model.state_dict())
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert fuse_experts(model) == 2
    after = model.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[key], before[key]) for key in before)


def test_a_model_without_experts_is_left_alone():
    assert split_experts(sparse_model(num_experts=0, num_experts_per_tok=None, moe_intermediate_size=None)) == 0
