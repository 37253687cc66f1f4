"""`clip_qkv`, `qk_norm="per_head"` and activations with weights, against formulas (native classes: tests/convert)."""

import pytest
import torch

from hf_variants import VariantsConfig, VariantsForCausalLM
from tests.variants import build, draw_ids, tiny


@torch.no_grad()
@pytest.mark.parametrize("qk_norm", ["none", "head", "full"])
def test_what_attention_compares_is_clipped(qk_norm):
    """Projections stay within the limit: of values always, of queries before a norm of heads or after one of channels."""
    attention = build(tiny("gqa", clip_qkv=0.3, qk_norm=qk_norm, position_embedding_type="none")).model.layers[0].self_attn
    states = torch.randn(2, 5, attention.config.hidden_size)
    raw = attention.q_proj(states)
    assert raw.abs().max() > 0.5
    found = attention._order(attention, raw, attention.q_norm, None).transpose(1, 2).flatten(2)
    per_head = lambda norm, x: norm(x.unflatten(-1, (-1, attention.head_dim))).flatten(-2)  # noqa: E731
    expected = {
        "none": lambda: raw.clamp(-0.3, 0.3),
        "head": lambda: per_head(attention.q_norm, raw.clamp(-0.3, 0.3)),
        "full": lambda: attention.q_norm(raw).clamp(-0.3, 0.3),
    }[qk_norm]()
    assert (found - expected).abs().max().item() <= 1e-6


@torch.no_grad()
def test_a_wide_clip_changes_nothing():
    model, wide = build(tiny("gqa")), build(tiny("gqa", clip_qkv=1e6))
    wide.load_state_dict(model.state_dict())
    ids = draw_ids(2, 9)
    assert torch.equal(wide(ids).logits, model(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("toggles", [{}, {"norm_type": "layernorm", "norm_bias": False}, {"norm_unit_offset": True}])
def test_equal_weights_of_all_heads_are_one_weight(toggles):
    shared, own = build(tiny("gqa", qk_norm="head", **toggles)), build(tiny("gqa", qk_norm="per_head", **toggles))
    state = shared.state_dict()
    wide = {
        name: tensor.expand_as(own.state_dict()[name]) if "_norm.weight" in name else tensor for name, tensor in state.items()
    }
    own.load_state_dict(wide)
    ids = draw_ids(2, 9)
    assert (own(ids).logits - shared(ids).logits).abs().max().item() <= 1e-5
    own.model.layers[0].self_attn.q_norm.weight[0] += 1.0
    assert (own(ids).logits - shared(ids).logits).abs().max().item() > 1e-3


@torch.no_grad()
def test_norms_per_head_by_hand():
    attention = build(tiny("gqa", qk_norm="per_head", norm_type="layernorm")).model.layers[0].self_attn
    heads = torch.randn(2, attention.config.num_key_value_heads, 5, attention.head_dim)
    centred = heads - heads.mean(-1, keepdim=True)
    normed = centred / (centred.pow(2).mean(-1, keepdim=True) + attention.config.norm_eps).sqrt()
    expected = normed * attention.k_norm.weight[None, :, None, :]
    assert (attention.k_norm(heads) - expected).abs().max().item() <= 1e-5
    assert {name for name, _ in attention.k_norm.named_parameters()} == {"weight"}


def test_halved_sinusoids_by_hand():
    from math import cos, sin

    table = build(tiny("sinusoidal_halves", position_embedding_offset=2)).model.embed_positions
    rows = table(torch.zeros(1, 3, 32), torch.tensor([[0, 5, 40]]))[0]
    for row, position in zip(rows, (2, 7, 42), strict=True):
        angles = [position / 10000 ** (i / 15) for i in range(16)]
        expected = torch.tensor([sin(angle) for angle in angles] + [cos(angle) for angle in angles])
        assert (row - expected).abs().max().item() <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_an_activation_have_the_dtype_of_the_model(dtype, tmp_path):
    """xIELU would build its own in bfloat16, whatever the model is."""
    shape = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = VariantsConfig(**shape, hidden_act="xielu", mlp_type="plain")
    VariantsForCausalLM._from_config(config, dtype=dtype).save_pretrained(tmp_path)
    model = VariantsForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    found = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    assert "model.layers.0.mlp.act_fn.alpha_p" in found
    assert set(found.values()) == {dtype}
