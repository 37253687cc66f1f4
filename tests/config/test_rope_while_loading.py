"""`rope_parameters` given to from_pretrained: brought into the standard form of a new config, whatever was left out."""

import pytest
from transformers import AutoModelForCausalLM

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.modeling.vocabulary import CHOICES, ROPE_KEYS

_SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "yarn", "factor": 2.0},
        {"rope_type": "yarn", "original_max_position_embeddings": 32},
        {"type": "dynamic", "factor": 2.0},
        {"rope_theta": 5e5},
    ],
)
def test_what_is_left_out_is_filled_in(rope, tmp_path):
    VariantsForCausalLM(VariantsConfig(**_SIZES, max_position_embeddings=64)).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, rope_parameters=dict(rope))
    expected = VariantsConfig(**_SIZES, max_position_embeddings=64, rope_parameters=dict(rope)).rope_parameters
    assert loaded.config.rope_parameters == expected and not loaded.changed_fields()


def test_what_cannot_be_is_refused(tmp_path):
    VariantsForCausalLM(VariantsConfig(**_SIZES)).save_pretrained(tmp_path)
    for rope, match in [({"rope_type": "linear"}, "needs 'factor'"), ([1], "must be a dict|is a list")]:
        with pytest.raises(ValueError, match=match):
            AutoModelForCausalLM.from_pretrained(tmp_path, rope_parameters=rope)


@pytest.mark.parametrize("kind", CHOICES["rope_type"])
@pytest.mark.parametrize("given", [{"factor": 2.0}, {"original_max_position_embeddings": 32}, {}])
def test_the_standard_form_is_final(kind, given):
    """Read a second time, as where a model is made, it stays; what a rule needs is not made up in between."""
    required, optional = ROPE_KEYS[kind]
    known = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, **given}
    rope = {"rope_type": kind, **{key: value for key, value in known.items() if key in {*required, *optional}}}
    follows = kind in ("yarn", "longrope") and "original_max_position_embeddings" in rope
    if "factor" in required and "factor" not in rope and not follows:
        with pytest.raises(ValueError, match="needs 'factor'"):
            VariantsConfig(**_SIZES, max_position_embeddings=64, rope_parameters=rope)
        return
    config = VariantsConfig(**_SIZES, max_position_embeddings=64, rope_parameters=rope)
    before = dict(config.rope_parameters)
    config.check()
    assert config.rope_parameters == before and before.get("factor") == (None if "factor" not in required else 2.0)
