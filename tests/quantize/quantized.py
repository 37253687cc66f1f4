"""Models whose matrices fit groups of 32, for the tests of this folder; and whether a layer still holds the same bits."""

import torch

from tests.variants import EXPERTS, MLA, build, draw_ids, tiny

FITTING = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
FITTING_MLA = {
    **MLA,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
FITTING_EXPERTS = {**EXPERTS, "moe_intermediate_size": 32}


def fitting(name="gqa", seed=0, **overrides):
    """`build(tiny(name))` with every width a multiple of 32."""
    return build(tiny(name, **{**FITTING, **overrides}), seed=seed)


def calibration(rows=16, length=32, seed=3):
    return draw_ids(rows, length, seed=seed)


def same(before, layer):
    """Whether `layer` holds the tensors of the state dict `before`, in their dtypes."""
    after = layer.state_dict()
    return before.keys() == after.keys() and all(
        after[name].dtype == tensor.dtype and torch.equal(after[name], tensor) for name, tensor in before.items()
    )
