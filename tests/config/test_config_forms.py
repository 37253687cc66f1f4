"""A config written as JSON, given by its old keys, or left to its defaults means the same; words match the dispatch tables."""

import json
from dataclasses import fields

import pytest
import torch
from rule_cases import BASE
from transformers import AutoConfig, GenerationConfig

from hf_variants import VariantsConfig, VariantsForCausalLM, VariantsModel
from hf_variants.modeling.attention_backends import ATTENTION_FUNCTIONS
from hf_variants.modeling.blocks import ATTENTIONS, TOPOLOGIES
from hf_variants.modeling.experts import ROUTERS
from hf_variants.modeling.feed_forward import FEED_FORWARDS
from hf_variants.modeling.grouped_attention import QK_NORMS
from hf_variants.modeling.head_layers import TASK_HEADS
from hf_variants.modeling.latent_attention import LATENT_QK_NORMS
from hf_variants.modeling.layer_plan import mlp_biases
from hf_variants.modeling.modeling_variants_seq2seq import DECODER_STARTS
from hf_variants.modeling.norms import NORMS
from hf_variants.modeling.output_gate import OUTPUT_GATES
from hf_variants.modeling.pooling import POOLINGS
from hf_variants.modeling.positions import POSITIONS, SINUSOID_DTYPES
from hf_variants.modeling.rope_scaling import ROPE_SCALINGS
from hf_variants.modeling.vocabulary import CHOICES
from tests.variants import TOGGLES, tiny

TABLES = {
    "norm_type": NORMS,
    "mlp_type": FEED_FORWARDS,
    "position_embedding_type": POSITIONS,
    "sinusoid_dtype": SINUSOID_DTYPES,
    "rope_type": ROPE_SCALINGS,
    "router_scoring": ROUTERS,
    "norm_placement": TOPOLOGIES,
    "qk_norm": QK_NORMS,
    "attn_output_gate": OUTPUT_GATES,
    "task_head": TASK_HEADS,
    "classifier_pooling": POOLINGS,
    "decoder_start": DECODER_STARTS,
}


@pytest.mark.parametrize("field", TABLES)
def test_the_words_are_the_keys_of_the_dispatch_table(field):
    assert set(CHOICES[field]) == set(TABLES[field])


def test_shorthands_aside_the_attention_types_are_the_attentions():
    assert set(CHOICES["attention_type"]) - {"mha", "mqa"} == set(ATTENTIONS)
    # `full` and `per_head` are refused under MLA by a rule
    assert set(LATENT_QK_NORMS) == set(QK_NORMS) - {"full", "per_head"}
    assert set(ATTENTION_FUNCTIONS) == {"eager", "sdpa", "flex_attention"}


@pytest.mark.parametrize("name", TOGGLES)
def test_a_config_survives_json(name, tmp_path):
    config = tiny(name)
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "variants"
    for read in (
        VariantsConfig.from_pretrained(tmp_path),
        AutoConfig.from_pretrained(tmp_path),
        VariantsConfig.from_dict(config.to_dict()),
        VariantsConfig.from_dict(json.loads(config.to_json_string(use_diff=False))),
    ):
        ours, theirs = (c.to_dict() for c in (config, read))
        for library_key in ("_name_or_path", "transformers_version", "architectures"):
            ours.pop(library_key, None), theirs.pop(library_key, None)
        assert ours == theirs
        assert read.layer_plan() == config.layer_plan()


@pytest.mark.parametrize("name", TOGGLES)
def test_a_config_is_resolved_once(name):
    """What was left None is written out: making a config from its own fields changes nothing."""
    config = tiny(name)
    keys = {field.name: getattr(config, field.name) for field in fields(config)}
    assert VariantsConfig(**keys).to_dict() == config.to_dict()


def frequencies(config):
    rotary = VariantsModel(config).rotary_emb
    positions = torch.arange(40).unsqueeze(0)
    lengths = {"prompt": torch.full((1, 40), 40), "current": torch.full((1, 40), 40)}
    return {key: torch.stack(module(positions, lengths, torch.float32)) for key, module in rotary.items()}


SCALINGS = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0, "original_max_position_embeddings": 16},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "longrope": {
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize("word", ["type", "rope_type"])
@pytest.mark.parametrize("kind", SCALINGS)
def test_b38_old_rope_keys_mean_the_new_ones(kind, word):
    old = VariantsConfig(**BASE, max_position_embeddings=64, rope_theta=5000.0, rope_scaling={word: kind, **SCALINGS[kind]})
    new = VariantsConfig(
        **BASE,
        max_position_embeddings=64,
        rope_parameters={"rope_type": kind, "rope_theta": 5000.0, **SCALINGS[kind]},
    )
    assert old.rope_parameters == new.rope_parameters and "type" not in old.rope_parameters
    ours, theirs = frequencies(old), frequencies(new)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    again = VariantsConfig.from_dict(json.loads(old.to_json_string(use_diff=False)))
    assert again.rope_parameters == old.rope_parameters


def test_b38_partial_rotation_is_applied_once():
    config = VariantsConfig(**BASE, partial_rotary_factor=0.5)
    again = VariantsConfig.from_dict(config.to_dict())
    for made in (config, again):
        assert made.rotary_dim_of("default") == 4
        assert VariantsModel(made).rotary_emb["default"].inv_freq.shape == (2,)


def test_b37_the_given_factor_is_used_whatever_the_lengths_say():
    factors = [
        VariantsConfig(
            **BASE,
            max_position_embeddings=64,
            rope_parameters={"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": 16},
        )
        for factor in (2.0, 8.0)
    ]
    two, eight = (frequencies(config)["default"] for config in factors)
    assert not torch.equal(two, eight)


def test_defaults_by_meaning():
    config = VariantsConfig(hidden_size=48, num_attention_heads=4)
    assert (config.num_key_value_heads, config.head_dim, config.intermediate_size) == (4, 12, 128)
    assert VariantsConfig(hidden_size=48, num_attention_heads=4, mlp_type="plain").intermediate_size == 192
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    assert VariantsConfig(attention_type="mqa").num_key_value_heads == 1
    assert VariantsConfig(norm_type="layernorm").norm_bias and not config.norm_bias
    assert not VariantsConfig(norm_placement="post_ln").final_norm
    assert VariantsConfig(**{**BASE, "position_embedding_type": "alibi"}).rope_parameters is None


def test_generation_parameters_go_to_the_generation_config(tmp_path):
    """As in transformers: accepted as keywords, never kept in the config, refused when it is saved with one set on it."""
    config = VariantsConfig(**BASE, temperature=0.7, top_k=5)
    assert "temperature" not in config.to_dict() and not hasattr(config, "top_k")
    config.temperature = 0.7
    with pytest.raises(ValueError, match="temperature"):
        config.save_pretrained(tmp_path)
    model = VariantsForCausalLM(VariantsConfig(**BASE))
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.7, eos_token_id=3)
    model.save_pretrained(tmp_path)
    loaded = VariantsForCausalLM.from_pretrained(tmp_path)
    assert (loaded.generation_config.temperature, loaded.generation_config.eos_token_id) == (0.7, 3)


def test_a_config_saved_wrong_is_refused_when_it_is_read(tmp_path):
    VariantsConfig(**BASE).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    for field, value, says in (("num_key_value_heads", 3, "not a multiple"), ("sliding_window", 0, "sliding_window=0")):
        (tmp_path / "config.json").write_text(json.dumps({**written, field: value}))
        with pytest.raises(ValueError, match=says):
            AutoConfig.from_pretrained(tmp_path)


def test_lists_may_be_tuples():
    config = VariantsConfig(**BASE, layer_types=("full_attention", "full_attention"), no_rope_layers=(1, 0))
    assert config.layer_types == ["full_attention"] * 2 and config.no_rope_layers == [1, 0]


def test_the_last_bias_of_a_feed_forward_follows_the_others_unless_it_differs(tmp_path):
    """Also in a config that was saved and is read again with a bias: half of the biases would be a subtle loss."""
    VariantsConfig(mlp_out_bias=False).save_pretrained(tmp_path)
    assert mlp_biases(VariantsConfig.from_pretrained(tmp_path)) == (False, False)
    assert mlp_biases(VariantsConfig.from_pretrained(tmp_path, mlp_bias=True)) == (True, True)
    VariantsConfig(mlp_out_bias=True).save_pretrained(tmp_path)
    assert mlp_biases(VariantsConfig.from_pretrained(tmp_path)) == (False, True)
    assert mlp_biases(VariantsConfig(), bias=True) == (True, True)
