"""Sinusoids far from the start: every family that adds them equals its native class beyond position 2,000.

Notable here: in fp32 the angle of position p is off by up to 6e-8 p, so that only the dtype in which the native class takes
its angles gives its logits there; the other dtype is shown to miss them, in every family.
"""

import math

import pytest
import torch
from native_cases import native_model, token_ids
from seq2seq_cases import native_model as native_pair

from hf_variants import VariantsConfig
from hf_variants.convert import config_to_native, find_family, from_native
from hf_variants.convert.config_map import Always
from hf_variants.convert.registry import family_names
from hf_variants.modeling.config_rules import SINUSOIDAL
from hf_variants.modeling.positions import POSITIONS, SINUSOID_DTYPES

TOLERANCE, TOKENS, FAR = 1e-5, 2100, 2000
DECODERS = {"ctrl": ("tied", {"n_positions": TOKENS}), "xglm": ("scaled", {"max_position_embeddings": TOKENS})}
PAIRS = {"marian": "two vocabularies", "pegasus": "scaled", "m2m_100": "scaled"}
SHALLOW = {"encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": TOKENS}


def far_inputs(family):
    """(native model, its inputs): for an encoder-decoder rows so long, else a few tokens so far on."""
    if family in PAIRS:
        ids = torch.randint(4, 50, (1, TOKENS), generator=torch.Generator().manual_seed(2))
        return native_pair((family, PAIRS[family]), **SHALLOW), {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    name, changes = DECODERS[family]
    inputs = {"input_ids": token_ids(2, 48), "position_ids": torch.arange(FAR, FAR + 48).expand(2, 48)}
    return native_model(family, name, **changes), inputs


def take_angles_in(model, dtype):
    for part in model.modules():
        if hasattr(part, "inv_freq"):
            part.dtype = SINUSOID_DTYPES[dtype]
            part.register_constants()


@pytest.mark.parametrize("family", [*DECODERS, *PAIRS])
@torch.no_grad()
def test_logits_at_far_positions(family):
    native, inputs = far_inputs(family)
    ours = from_native(native)
    expected = native(**inputs).logits[:, -48:]
    found = ours(**inputs).logits[:, -48:]
    assert expected.std().item() > 0.1 and (found - expected).abs().max().item() <= TOLERANCE
    used = {stack.sinusoid_dtype for stack in ours.config.stacks}
    (other,) = set(SINUSOID_DTYPES) - used
    take_angles_in(ours, other)
    assert (ours(**inputs).logits[:, -48:] - expected).abs().max().item() > TOLERANCE


def test_every_family_with_sinusoids_is_tried():
    found = set()
    for family in map(find_family, family_names()):
        rules = [*family.encoder, *family.decoder] if family.two_stacks else family.config
        fixed = [rule.toggles.get("position_embedding_type") for rule in rules if isinstance(rule, Always)]
        if set(SINUSOIDAL) & set(fixed):
            found.add(family.model_type)
    assert found == {*DECODERS, *PAIRS}


@pytest.mark.parametrize("kind", SINUSOIDAL)
def test_angles_in_double_precision_are_exact_at_any_position(kind):
    shape = {"hidden_size": 16, "num_attention_heads": 2, "position_embedding_type": kind}
    at = torch.tensor([[0, 3, 2047, 100_003, 4_000_037]])
    power = {"sinusoidal_halves": lambda i: i / 7}.get(kind, lambda i: 2 * i / 16)
    angles = [[position / 10000 ** power(i) for i in range(8)] for position in at[0].tolist()]
    parts = [torch.tensor([[wave(angle) for angle in row] for row in angles]) for wave in (math.sin, math.cos)]
    expected = torch.stack(parts, -1).flatten(-2) if kind == "sinusoidal" else torch.cat(parts, -1)
    for dtype, exact in (("float64", True), ("float32", False)):
        table = POSITIONS[kind](VariantsConfig(**shape, sinusoid_dtype=dtype)).to(torch.bfloat16)
        found = table(torch.zeros(1, 5, 16), at)[0]
        assert ((found - expected).abs().max().item() <= 1e-7) == exact
        assert found.dtype == torch.float32 and table.inv_freq.dtype == SINUSOID_DTYPES[dtype]


@pytest.mark.parametrize(("family", "dtype"), [("marian", "float32"), ("xglm", "float64")])
def test_a_family_that_takes_its_angles_otherwise_is_refused(family, dtype):
    native, _ = far_inputs(family)
    config = from_native(native).config
    for stack in config.stacks:
        stack.sinusoid_dtype = dtype
    with pytest.raises(ValueError, match="sinusoid_dtype"):
        config_to_native(config, family)
