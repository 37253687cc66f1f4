"""Wrong keys, types, words and RoPE dicts are refused when the config is made, and the text names what to write instead."""

import pytest
import torch
from rule_cases import BASE

from hf_variants import VariantsConfig, VariantsModel
from hf_variants.modeling.vocabulary import CHOICES, ROPE_KEYS

YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}


def refusal(**keys):
    with pytest.raises(ValueError) as error:
        VariantsConfig(**{**BASE, **keys})
    return str(error.value)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("num_attention_head", "num_attention_heads"),
        ("qk_nrom", "qk_norm"),
        ("slidding_window", "sliding_window"),
        ("num_expert", "num_experts"),
        ("rope_thetta", "rope_theta"),
        ("norm_placment", "norm_placement"),
    ],
)
def test_an_unknown_key_names_the_nearest(wrong, meant):
    text = refusal(**{wrong: 4})
    assert f"has no key '{wrong}'" in text and f"did you mean '{meant}'?" in text


def test_an_unknown_key_without_a_neighbour_lists_the_known():
    text = refusal(zzzzqqqq=1)
    assert "did you mean" not in text and "hidden_size" in text


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("hidden_size", "32", "int"),
        ("hidden_size", 32.0, "int"),
        ("num_hidden_layers", True, "int"),
        ("attention_bias", 1, "bool"),
        ("qk_norm", None, "str"),
        ("norm_eps", "1e-6", "float or int"),
        ("layer_types", "full_attention", "list or None"),
        ("rope_parameters", 10000.0, "dict or None"),
        ("sliding_window", 4.5, "int or None"),
        ("eos_token_id", "2", "int or list or None"),
        ("num_experts", None, "int"),
    ],
)
def test_a_wrong_type_names_the_right_one(field, value, expected):
    text = refusal(**{field: value})
    assert f"{field}={value!r}" in text and f"must be {expected}" in text


@pytest.mark.parametrize(
    "field", [name for name in CHOICES if name not in ("layer_types", "mlp_layer_types", "rope_type", "decoder_start")]
)
def test_an_unknown_word_lists_the_choices(field):
    word = next(iter(CHOICES[field]))
    text = refusal(**{field: word + "x"})
    assert f"{field}='{word}x' is unknown" in text and all(choice in text for choice in CHOICES[field])


@pytest.mark.parametrize(("field", "word"), [("layer_types", "full_atention"), ("mlp_layer_types", "spars")])
def test_an_unknown_word_in_a_list_per_layer(field, word):
    assert "did you mean" in refusal(**{field: [word, word]})


@pytest.mark.parametrize(
    ("field", "value"), [("layer_types", ["full_attention"]), ("mlp_layer_types", ["dense"] * 3), ("no_rope_layers", [1])]
)
def test_a_list_per_layer_has_one_entry_per_layer(field, value):
    text = refusal(**{field: value})
    assert field in text and "num_hidden_layers=2" in text


def test_an_unknown_activation_names_the_nearest():
    assert "did you mean 'silu'?" in refusal(hidden_act="sillu")


@pytest.mark.parametrize(
    "keys",
    [
        {"attention_type": "mha", "num_key_value_heads": 2},
        {"attention_type": "mqa", "num_key_value_heads": 4},
        {"num_attention_heads": 5, "head_dim": None},
        {"sliding_window": 4, "attention_chunk_size": 4},
        {"num_key_value_heads": 8},
        {"sliding_window": -1},
        {"num_experts": -2},
    ],
    ids=str,
)
def test_an_impossible_shape_or_pair_is_refused(keys):
    text = refusal(**keys)
    assert any(name in text for name in keys)


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        ({"rope_type": "yarnn", "factor": 2.0}, "did you mean 'yarn'?"),
        ({"rope_type": "linear"}, "needs 'factor'"),
        ({"rope_type": "ntk"}, "needs 'factor'"),
        ({"rope_type": "dynamic"}, "needs 'factor'"),
        ({"rope_type": "yarn"}, "needs 'factor'"),
        ({"rope_type": "llama3", "factor": 8.0}, "needs 'low_freq_factor'"),
        ({"rope_type": "longrope", "factor": 2.0}, "needs 'short_factor'"),
        ({"rope_type": "default", "factor": 2.0}, "'factor' has no effect"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 32}, "'beta_fast' has no effect"),
        ({**YARN, "atention_factor": 1.0}, "did you mean 'attention_factor'?"),
        ({**YARN, "factor": 0.5}, "factor=0.5 must be at least 1"),
        ({**YARN, "factor": "4"}, "must be a number greater than zero"),
        ({**YARN, "original_max_position_embeddings": 0}, "must be a number greater than zero"),
        ({**LLAMA3, "low_freq_factor": 4.0}, "must be less than high_freq_factor"),
        ({**LONG, "long_factor": [2.0] * 3}, "list of 4 numbers"),
        ({**LONG, "short_factor": 2.0}, "list of 4 numbers"),
        ({**LONG, "short_factor": [1.0, 1.0, 1.0, "1"]}, "list of 4 numbers"),
        ({**YARN, "truncate": "no"}, "truncate='no' must be True or False"),
        ({"rope_theta": -1.0}, "rope_theta=-1.0 must be a number greater than zero"),
        ({"partial_rotary_factor": 1.5}, "must lie in (0, 1]"),
        ({"full_atention": {"rope_type": "default"}}, "full_atention"),
    ],
    ids=str,
)
def test_wrong_rope_keys_are_refused(rope, says):
    assert says in refusal(rope_parameters=rope)


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        ({"full_attention": {"rope_type": "default"}}, "layer_types uses 'sliding_attention'"),
        (
            {"full_attention": {}, "sliding_attention": {}, "chunked_attention": {}},
            "rope_parameters['chunked_attention'] has no effect",
        ),
        ({"full_attention": YARN | {"factor": None}, "sliding_attention": {}}, "rope_parameters['full_attention']"),
        ({"full_attention": 3, "sliding_attention": {}}, "must be a dict"),
    ],
    ids=str,
)
def test_wrong_rope_keys_per_layer_type_are_refused(rope, says):
    assert says in refusal(rope_parameters=rope, **ALTERNATING)


@pytest.mark.parametrize("scheme", ["alibi", "learned", "sinusoidal", "none"])
@pytest.mark.parametrize("keys", [{"rope_theta": 500.0}, {"rope_parameters": {"rope_theta": 500.0}}, {"rope_scaling": YARN}])
def test_rope_keys_without_rope_are_refused(scheme, keys):
    assert "have no effect with position_embedding_type" in refusal(position_embedding_type=scheme, **keys)


def test_two_different_ropes_are_refused():
    assert "disagree" in refusal(rope_parameters=LLAMA3, rope_scaling=YARN)


def test_every_rope_type_has_its_keys():
    assert set(ROPE_KEYS) == set(CHOICES["rope_type"])


@pytest.mark.parametrize("offset", [0, 2])
def test_a_sequence_beyond_a_learned_table_is_refused(offset):
    model = VariantsModel(
        VariantsConfig(**BASE, position_embedding_type="learned", max_position_embeddings=6, position_embedding_offset=offset)
    )
    assert model(torch.ones(1, 6, dtype=torch.long)).last_hidden_state.shape == (1, 6, 32)
    with pytest.raises(ValueError, match="position 6 lies beyond the learned table of max_position_embeddings=6"):
        model(torch.ones(1, 7, dtype=torch.long))
    # pads do not count
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])
    assert model(torch.ones(1, 8, dtype=torch.long), attention_mask=mask).last_hidden_state.isfinite().all()
    past = model(torch.ones(1, 6, dtype=torch.long), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="beyond the learned table"):
        model(torch.ones(1, 1, dtype=torch.long), past_key_values=past)


@pytest.mark.parametrize("width", [3, 9])
def test_a_mask_of_the_wrong_width_is_refused(width):
    model = VariantsModel(VariantsConfig(**BASE))
    with pytest.raises(ValueError, match=f"attention_mask has {width} columns"):
        model(torch.ones(1, 5, dtype=torch.long), attention_mask=torch.ones(1, width, dtype=torch.long))


def test_tokens_and_embeddings_together_are_refused():
    model = VariantsModel(VariantsConfig(**BASE))
    for keys in ({}, {"input_ids": torch.ones(1, 2, dtype=torch.long), "inputs_embeds": torch.ones(1, 2, 32)}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            model(**keys)


@pytest.mark.parametrize("name", ["LLaMA-3-8B", "GEMMA-2-9B", "Tiny/MLA"])
def test_names_in_other_case_are_recognised(name):
    with pytest.raises(ValueError, match=f"did you mean '{name.lower()}'"):
        VariantsConfig.from_preset(name)
