"""Decoders that drop activations natively drop the same ones in ours, and keep the rate on the way back."""

import pytest
import torch
from native_cases import native_model, token_ids

from hf_variants.convert import config_to_native, from_native


@pytest.mark.parametrize("family", ["biogpt", "xglm"])
@torch.no_grad()
def test_the_same_activations_are_dropped(family):
    native = native_model(family, "scaled", activation_dropout=0.3).train()
    ours = from_native(native).train()
    ids, logits = token_ids(2, 9), []
    for model in (native, ours):
        torch.manual_seed(5)
        logits.append(model(ids).logits)
    assert (logits[0] - logits[1]).abs().max().item() <= 1e-5
    assert (logits[0] - native.eval()(ids).logits).abs().max().item() > 0.1
    assert config_to_native(ours.config, family).activation_dropout == ours.config.activation_dropout == 0.3
