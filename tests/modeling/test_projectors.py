"""Projectors and their norms, against the formulas; types of tokens that say again where images are."""

import pytest
import torch

from tests.modeling.helpers import TOLERANCE
from tests.variants import far
from tests.vision import IMAGE, IMAGE_ID, batch, vlm


@torch.no_grad()
@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize("norm", ["none", "layernorm", "rmsnorm"])
@pytest.mark.parametrize("projector", ["affine", "mlp", "gated"])
def test_projectors_are_their_formulas(projector, norm, unit_offset):
    inner = {} if projector == "affine" else {"projector_intermediate_size": 20}
    keys = {"projector": projector, "projector_norm": norm, "token_compression": "pool", "compression_factor": 3, **inner}
    keys |= {} if norm == "none" else {"projector_norm_eps": 0.5}
    bridge = vlm(text_keys={"norm_unit_offset": unit_offset}, image_delimiters=False, **keys).model.multi_modal_projector
    patches = torch.randn(2, 9, 24, generator=torch.Generator().manual_seed(0))
    x = patches.mean(1)
    if norm == "layernorm":
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 0.5).sqrt()
        x = x * bridge.norm.weight + bridge.norm.bias
    if norm == "rmsnorm":
        x = x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt() * (bridge.norm.weight + unit_offset)
    layers = bridge.projector
    if projector == "affine":
        expected = x @ layers.linear.weight.T + layers.linear.bias
    else:
        x = x @ layers.linear_1.weight.T + layers.linear_1.bias
        assert x.shape[-1] == {"mlp": 20, "gated": 40}[projector]
        gelu = torch.nn.functional.gelu
        x = gelu(x) if projector == "mlp" else x[:, :20] * gelu(x[:, 20:])
        expected = x @ layers.linear_2.weight.T + layers.linear_2.bias
    assert far(bridge(patches, (3, 3))[:, 0], expected) <= TOLERANCE


@torch.no_grad()
def test_types_of_images_are_taken_where_they_are_those_of_the_ids():
    for kind in ("bidirectional", "causal"):
        model = vlm(image_attention=kind)
        inputs = batch(model, (1, 2, IMAGE, 3), (IMAGE, 4))
        types = (inputs["input_ids"] == IMAGE_ID).long()
        if kind == "causal":
            with pytest.raises(ValueError, match="token_type_ids has the type 1, which image_attention='causal' does not"):
                model(**inputs, token_type_ids=types)
            continue
        assert torch.equal(model(**inputs, token_type_ids=types).logits, model(**inputs).logits)
        options = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
        plain = model.generate(**inputs, **options)
        for use_cache in (True, False):
            assert torch.equal(model.generate(**inputs, token_type_ids=types, use_cache=use_cache, **options), plain)
        with pytest.raises(ValueError, match="token_type_ids has the type 1, which image_attention='bidirectional' does not"):
            model(**inputs, token_type_ids=types.roll(1, dims=1))
