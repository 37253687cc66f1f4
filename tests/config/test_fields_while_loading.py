"""Fields given to from_pretrained, or set on a config that is there: what follows from them follows as in a new config."""

import copy
import json

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from hf_variants import VariantsConfig, VariantsForCausalLM, VariantsForSeq2SeqLM, VariantsSeq2SeqConfig
from hf_variants.modeling.vocabulary import CHOICES, ROPE_KEYS
from tests.variants import BASE, BIDIRECTIONAL, EXPERTS, MLA, RELATIVE

_SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}

CONFIGS = {
    "dense": BASE,
    "mla": {**BASE, **MLA},
    "experts": {**BASE, **EXPERTS, "num_shared_experts": 1},
    "encoder": {**BASE, **BIDIRECTIONAL, **RELATIVE},
    "partial": {**BASE, "partial_rotary_factor": 0.5},
}
# short forms and values that others follow from
VALUES = [
    {"attention_type": "mha"},
    {"attention_type": "mqa"},
    {"attention_type": "mqa", "num_key_value_heads": None},
    {"attention_type": "mla", "num_key_value_heads": None},
    {"num_hidden_layers": 3},
    {"num_hidden_layers": 3, "layer_types": None, "mlp_layer_types": None, "no_rope_layers": None},
    {"sliding_window": 4},
    {"sliding_window": 4, "layer_types": None},
    {"layer_types": ("full_attention", "full_attention")},
    {"mlp_type": "plain", "intermediate_size": None},
    {"mlp_bias": True},
    {"num_experts": 4},
    {"num_experts": 4, "mlp_layer_types": None},
    {"router_scoring": "sparsemixer", "norm_topk_prob": None},
    {"router_balance": "aux_loss", "router_aux_loss_coef": None},
    {"norm_placement": "post_ln", "final_norm": None},
    {"norm_type": "layernorm", "norm_bias": None},
    {"position_embedding_type": "alibi"},
    {"position_embedding_type": "alibi", "rope_parameters": None},
    {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
    {"rope_parameters": None, "partial_rotary_factor": 0.25},
    {"rope_parameters": [1]},
    {"head_dim": "wide"},
    {"is_causal": True, "classifier_pooling": None},
]


def outcome(make):
    """What a config says, or why it is refused."""
    try:
        return make().to_dict()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_field_means_what_it_means_in_a_new_config(name, tmp_path):
    VariantsConfig(**CONFIGS[name]).save_pretrained(tmp_path)
    saved = {key: value for key, value in json.loads((tmp_path / "config.json").read_text()).items() if key != "model_type"}
    optional = [key for key, kind in VariantsConfig.__annotations__.items() if "None" in str(kind)]
    assert len(optional) > 30
    for given in [*VALUES, *({key: None} for key in optional)]:
        expected = outcome(lambda given=given: VariantsConfig(**copy.deepcopy({**saved, **given})))
        loaded = outcome(lambda given=given: VariantsConfig.from_pretrained(tmp_path, **copy.deepcopy(given)))
        assert _without_paths(loaded) == _without_paths(expected), given

        def set_later(given=given):
            config = VariantsConfig(**copy.deepcopy(saved))
            for key, value in copy.deepcopy(given).items():
                setattr(config, key, value)
            config.check()
            return config

        assert _without_paths(outcome(set_later)) == _without_paths(expected), given


def _without_paths(found):
    return found if isinstance(found, str) else {key: value for key, value in found.items() if key != "_name_or_path"}


@pytest.mark.parametrize("given", [{"final_norm": None}, {"attention_type": "mha"}, {"layer_types": None, "head_dim": None}])
def test_a_model_is_built_of_it(given, tmp_path):
    VariantsForCausalLM(VariantsConfig(**_SIZES)).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, **given)
    assert not loaded.changed_fields() and _without_paths(loaded.config.to_dict()) == _without_paths(
        AutoConfig.from_pretrained(tmp_path).to_dict()
    )


def test_parts_of_a_config_may_be_given_in_part(tmp_path):
    stack = {**_SIZES, "pad_token_id": 0}
    keys = {"encoder": stack, "decoder": stack, "decoder_start_token_id": 0}
    VariantsForSeq2SeqLM(VariantsSeq2SeqConfig(**keys, tie_word_embeddings=True)).save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, decoder={"head_dim": None, "norm_eps": 1e-5})
    assert loaded.config.decoder.norm_eps == 1e-5 != loaded.config.encoder.norm_eps and loaded.config.decoder.head_dim == 8
    assert AutoConfig.from_pretrained(tmp_path, tie_word_embeddings=None).tie_word_embeddings is True
    for given, match in [
        ({"encoder": {"hidden_size": 8}}, "cross_attention_hidden_size"),
        ({"decoder": {"hiden": 8}}, "hiden"),
    ]:
        with pytest.raises(ValueError, match=match):
            AutoConfig.from_pretrained(tmp_path, **given)


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
