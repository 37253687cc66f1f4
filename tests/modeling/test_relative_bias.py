"""T5's relative bias: buckets as in the native class, the same on every backend, gradients of the table, caches and pads."""

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from hf_variants import VariantsForMaskedLM
from hf_variants.modeling.relative_bias import RelativeBias, bucket_of
from tests.variants import BIDIRECTIONAL, RELATIVE, build, draw_ids, far, tiny


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 9), (64, 20)])
def test_buckets_equal_the_native_ones(buckets, distance, bidirectional):
    distances = torch.arange(-700, 700)
    native = T5Attention._relative_position_bucket(distances, bidirectional, buckets, distance)
    assert torch.equal(bucket_of(distances, buckets, distance, bidirectional), native)


def test_the_places_of_the_paper():
    values = torch.tensor([-8, -16, -128, 1, 8])
    assert bucket_of(values, 32, 128, True).tolist() == [8, 10, 15, 17, 24]
    assert bucket_of(torch.tensor([-16, -128, 3]), 32, 128, False).tolist() == [16, 31, 0]


@pytest.mark.parametrize("name", ["relative", "relative_terms", "relative_chunked", "mla_relative"])
def test_backends_give_the_same_gradients_of_the_table(name):
    grads = []
    for backend in ("eager", "sdpa"):
        model = build(tiny(name)).train()
        model.set_attn_implementation(backend)
        mask = torch.tensor([[1] * 9, [0, 0, 0] + [1] * 6])
        model(draw_ids(2, 9), attention_mask=mask, labels=draw_ids(2, 9)).loss.backward()
        grads.append(model.model.embed_positions.weight.grad)
    assert far(*grads) < 1e-5 * max(1.0, grads[0].abs().max().item()) and grads[0].abs().max() > 1e-4


def test_gradients_in_blocks_and_under_activation_checkpointing(monkeypatch):
    from hf_variants.modeling import blockwise_attention

    grads = []
    for elements, reentrant in ((1 << 21, None), (1, None), (1 << 21, True), (1 << 21, False)):
        monkeypatch.setattr(blockwise_attention, "BLOCK_ELEMENTS", elements)
        model = build(tiny("relative", max_position_embeddings=64)).train()
        if reentrant is not None:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            model.enable_input_require_grads()
        model(draw_ids(2, 40), labels=draw_ids(2, 40), use_cache=False).loss.backward()
        grads.append(model.model.embed_positions.weight.grad)
    assert all(far(grads[0], other) < 1e-5 * max(1.0, grads[0].abs().max().item()) for other in grads[1:])


def test_both_sides_differ_in_an_encoder_and_the_bias_is_seen():
    config = tiny("relative", **BIDIRECTIONAL)
    model, ids = build(config, VariantsForMaskedLM), draw_ids(1, 6)
    with torch.no_grad():
        whole = model(ids).logits
        model.model.embed_positions.weight[4:] += 1.0
        assert far(model(ids).logits, whole) > 1e-3
        # a number that all buckets share moves every score alike
        model.model.embed_positions.weight[4:] -= 1.0
        model.model.embed_positions.weight += 3.0
        assert far(model(ids).logits, whole) < 1e-4


def test_the_bias_of_a_block_is_that_of_the_whole():
    bias = RelativeBias(torch.randn(8, 3), torch.arange(5)[None], torch.arange(7)[None], 9, True)
    assert torch.equal(bias.block(slice(2, 4)), bias.block(slice(None))[:, :, 2:4])
    assert RELATIVE["relative_attention_num_buckets"] == 8
