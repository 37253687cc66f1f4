"""Weight rules: exact inverses, and complaints that name the tensors (known failures B34, B67, B69)."""

from types import SimpleNamespace

import pytest
import torch
from native_cases import native_model

from hf_variants.convert import find_family, from_native
from hf_variants.convert.tensor_ops import (
    Deinterleave,
    DropLeadingOne,
    Split,
    SplitPerBlock,
    SplitPerGroup,
    SplitPerHead,
    SwapHalves,
    Transpose,
    Unflatten,
    head_rows,
)
from hf_variants.convert.weight_rules import apply_rules, check_state, keep, only_if, rearrange, rename, stacked

SIZES = SimpleNamespace(num_attention_heads=6, num_key_value_heads=2, head_dim=4)


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (Transpose(), (10, 7)),
        (Transpose(1, 2), (3, 10, 7)),
        (Split(head_rows), (40, 5)),
        (Split(head_rows), (40,)),
        (SplitPerHead(), (72, 5)),
        (SplitPerHead(), (72,)),
        (SplitPerGroup(), (40, 5)),
        (SplitPerGroup(), (40,)),
        (SplitPerBlock(4), (48, 5)),
        (SwapHalves(), (24, 5)),
        (SwapHalves(), (24,)),
        (DropLeadingOne(), (1, 6)),
        (Unflatten(lambda config: config.num_attention_heads), (24, 5)),
        (Deinterleave(1), (3, 10, 7)),
        (Deinterleave(1), (3, 10)),
    ],
)
def test_operations_are_bitwise_reversible(op, shape):
    tensor = torch.randn(shape)
    there = op.into([tensor], SIZES)
    (back,) = op.back(there, SIZES)
    assert torch.equal(back, tensor)
    assert sorted(torch.cat([part.flatten() for part in there]).tolist()) == sorted(tensor.flatten().tolist())


def test_per_head_rows_are_not_block_rows():
    """B67: rows named (head, part, dimension) land in part, ordered (head, dimension)."""
    rows = torch.tensor([head * 100 + part * 10 + d for head in range(6) for part in range(3) for d in range(4)])
    q, k, v = SplitPerHead().into([rows], SIZES)
    for part, found in enumerate((q, k, v)):
        assert found.tolist() == [head * 100 + part * 10 + d for head in range(6) for d in range(4)]


def test_rows_per_group_hold_their_queries_first():
    """Rows named (group, member, dimension): three queries, a key and a value in each of two groups."""
    rows = torch.tensor([group * 100 + member * 10 + d for group in range(2) for member in range(5) for d in range(4)])
    q, k, v = SplitPerGroup().into([rows], SIZES)
    assert q.tolist() == [group * 100 + member * 10 + d for group in range(2) for member in range(3) for d in range(4)]
    assert k.tolist() == [group * 100 + 30 + d for group in range(2) for d in range(4)]
    assert v.tolist() == [group * 100 + 40 + d for group in range(2) for d in range(4)]


def test_rows_per_block_keep_the_order_of_blocks():
    rows = torch.tensor([block * 100 + part * 10 + d for block in range(4) for part in range(3) for d in range(2)])
    parts = SplitPerBlock(4).into([rows], SIZES)
    for part, found in enumerate(parts):
        assert found.tolist() == [block * 100 + part * 10 + d for block in range(4) for d in range(2)]


def test_halves_swap_within_each_head():
    assert SwapHalves().into([torch.arange(8)], SIZES)[0].tolist() == [2, 3, 0, 1, 6, 7, 4, 5]


def test_numbered_tensors_are_stacked_and_unstacked():
    rule = stacked("h.*.norms.{}.weight", "layers.*.norm.weight", lambda config: config.num_key_value_heads)
    state = {f"h.3.norms.{index}.weight": torch.randn(4) for index in range(2)}
    there = apply_rules([rule], state, SIZES)
    assert torch.equal(there["layers.3.norm.weight"], torch.stack(list(state.values())))
    back = apply_rules([rule], there, SIZES, back=True)
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def test_a_missing_number_is_named():
    rule = stacked("h.norms.{}.weight", "norm.weight", lambda config: config.num_key_value_heads)
    with pytest.raises(ValueError, match=r"h\.norms\.1\.weight.*missing"):
        apply_rules([rule], {"h.norms.0.weight": torch.ones(4)}, SIZES)


def test_rules_can_follow_the_config():
    rules = [
        *only_if(lambda config: config.num_attention_heads == 6, rename("a", "six")),
        *only_if(lambda config: config.num_attention_heads != 6, rename("a", "other")),
    ]
    assert set(apply_rules(rules, {"a": torch.ones(1)}, SIZES)) == {"six"}


def test_deinterleave_puts_even_entries_first():
    assert Deinterleave(0).into([torch.arange(6)], SIZES)[0].tolist() == [0, 2, 4, 1, 3, 5]


def test_rules_chain_in_order_and_back_in_reverse():
    rule = rearrange("h.*.qkv", tuple(f"layers.*.{part}" for part in "qkv"), Transpose(), Split(head_rows))
    state = {"h.0.qkv": torch.randn(5, 40), "h.11.qkv": torch.randn(5, 40)}
    there = apply_rules([rule], state, SIZES)
    assert [tuple(there[f"layers.11.{part}"].shape) for part in "qkv"] == [(24, 5), (8, 5), (8, 5)]
    assert torch.equal(there["layers.0.q"], state["h.0.qkv"].T[:24])
    back = apply_rules([rule], there, SIZES, back=True)
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def test_stars_match_one_part_and_two_stars_the_rest():
    state = {"a.0.x.weight": torch.ones(1), "a.0.x.y.bias": torch.ones(2)}
    assert set(apply_rules([rename("a.*.x.**", "b.*.z.**")], state, SIZES)) == {"b.0.z.weight", "b.0.z.y.bias"}
    with pytest.raises(ValueError, match=r"takes the 1 tensors a\.0\.x\.y\.bias"):
        apply_rules([rename("a.*.x.*", "b.*.z.*")], state, SIZES)


def test_a_missing_partner_is_named():
    rule = rearrange("h.qkv", ("q", "k", "v"), Split(head_rows))
    with pytest.raises(ValueError, match=r"\['k'\] are missing beside \['q', 'v'\]"):
        apply_rules([rule], {"q": torch.ones(24), "v": torch.ones(8)}, SIZES, back=True)


def test_a_size_that_cannot_be_split_is_named():
    rule = rearrange("h.qkv", ("q", "k", "v"), Split(head_rows))
    with pytest.raises(ValueError, match=r"\['h.qkv'\] cannot be converted: shape \(41,\).*\[24, 8, 8\]"):
        apply_rules([rule], {"h.qkv": torch.ones(41)}, SIZES)


def test_a_state_that_does_not_fit_names_every_problem():
    state, expected = {"a": torch.ones(2), "c": torch.ones(1)}, {"a": torch.ones(3), "b": torch.ones(1)}
    with pytest.raises(ValueError, match=r"1 missing: b; 1 left over: c; a has shape \(2,\) instead of \(3,\)"):
        check_state(state, expected, "Model")


def test_keep_makes_one_rule_per_name():
    assert [rule.native for rule in keep("a", "b.*")] == [("a",), ("b.*",)]


def test_a_tensor_without_a_rule_is_named():
    native = native_model("llama", "plain")
    native.model.layers[1].register_parameter("surprise", torch.nn.Parameter(torch.ones(2)))
    with pytest.raises(ValueError, match=r"model\.layers\.1\.surprise"):
        from_native(native)


def test_a_tensor_that_the_target_lacks_is_named():
    """A QK-norm inside a plain Llama passes the name patterns and is caught by the target's own names."""
    native = native_model("llama", "plain")
    native.model.layers[2].self_attn.q_norm = torch.nn.LayerNorm(8, bias=False)
    with pytest.raises(ValueError, match=r"left over: model\.layers\.2\.self_attn\.q_norm\.weight"):
        from_native(native)


def test_gradients_map_by_the_same_rules():
    native = native_model("gpt2", "plain")
    native(input_ids=torch.ones(1, 3, dtype=torch.long), labels=torch.ones(1, 3, dtype=torch.long)).loss.backward()
    grads = {name: parameter.grad for name, parameter in native.named_parameters()}
    config = from_native(native).config
    rules = find_family("gpt2").weights
    back = apply_rules(rules, apply_rules(rules, grads, config), config, back=True)
    assert all(torch.equal(back[name], grad) for name, grad in grads.items())
