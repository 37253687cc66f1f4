"""Presets: the published ones mean the published config, the tiny ones train and together take every choice there is."""

from dataclasses import fields
from functools import cache
from typing import get_args

import pytest
import torch
from published_configs import PUBLISHED
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from hf_variants import (
    VariantsConfig,
    VariantsForCausalLM,
    VariantsForMaskedLM,
    VariantsForSeq2SeqLM,
    VariantsForSequenceClassification,
)
from hf_variants.analysis import count_parameters
from hf_variants.convert import config_from_native
from hf_variants.convert.meaning import differences
from hf_variants.modeling import family_config
from hf_variants.modeling.vocabulary import CHOICES
from hf_variants.presets import list_presets, load_preset, preset_keys

# encoder-decoders, each of two stacks
PAIRS = {name for name in list_presets() if "model_type" in preset_keys(name)}
PUBLISHED_PAIRS = {
    "t5-small": (
        "t5",
        {"feed_forward_proj": "relu", "decoder_start_token_id": 0, "vocab_size": 32128},
        60_506_624,
    ),
    "bart-base": (
        "bart",
        {
            **{"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12},
            **{"decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072},
            **{"activation_dropout": 0.1, "attention_dropout": 0.1},
        },
        139_420_416,
    ),
}
TINY = [name for name in list_presets() if name.startswith("tiny/") and name not in PAIRS]
# What a preset says otherwise: the router's loss is on, which a model that is trained from nothing needs, and so is the cache.
ON_PURPOSE = {
    "mixtral-8x7b": {"router_balance", "router_aux_loss_coef"},
    "gpt-oss-20b": {"router_balance", "router_aux_loss_coef", "bos_token_id"},
    "mpt-7b": {"use_cache"},
}


def test_every_preset_has_its_published_config():
    assert set(PUBLISHED) | {"quickstart"} == set(list_presets()) - set(TINY) - PAIRS
    assert set(PUBLISHED_PAIRS) == {name for name in PAIRS if not name.startswith("tiny/")}


@pytest.mark.parametrize("name", PUBLISHED_PAIRS)
def test_a_preset_of_two_stacks_means_the_published_config(name):
    model_type, keys, count = PUBLISHED_PAIRS[name]
    native, config = CONFIG_MAPPING[model_type](**keys), load_preset(name)
    found = differences(config_from_native(native), config)
    assert {field.split(".")[-1] for field in found} <= {"initializer_range"}
    with torch.device("meta"):
        models = AutoModelForSeq2SeqLM.from_config(native), VariantsForSeq2SeqLM(config)
    # natively a table of positions that nothing trains may be a parameter
    assert [sum(p.numel() for p in model.parameters()) for model in models] == [count] * 2
    assert count_parameters(config).total == count


@pytest.mark.parametrize("name", sorted(name for name in PAIRS if name.startswith("tiny/")))
def test_a_preset_of_two_stacks_trains(name):
    small = {"num_hidden_layers": 1, "vocab_size": 61}
    keys = preset_keys(name)
    stacks = {stack: {**keys[stack], **small} for stack in ("encoder", "decoder")}
    model = VariantsForSeq2SeqLM(load_preset(name, **stacks)).train()
    ids = torch.randint(2, 61, (2, 6), generator=torch.Generator().manual_seed(0))
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_pairs_take_every_beginning():
    assert {load_preset(name).decoder_start for name in PAIRS} == set(CHOICES["decoder_start"])


def test_a_preset_of_two_stacks_has_a_config_class_of_its_own():
    with pytest.raises(ValueError, match="variants_seq2seq.*load_preset"):
        VariantsConfig.from_preset("t5-small")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_means_the_published_config(name):
    model_type, keys, count = PUBLISHED[name]
    native = CONFIG_MAPPING[model_type](**keys)
    assert set(differences(config_from_native(native), load_preset(name))) == ON_PURPOSE.get(name, set())
    with torch.device("meta"):
        auto = AutoModelForCausalLM if load_preset(name).is_causal else AutoModelForMaskedLM
        model = auto.from_config(native)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("name", sorted(set(list_presets()) - PAIRS))
def test_a_preset_holds_only_choices(name):
    default = {field.name: field.default for field in fields(VariantsConfig)}
    restated = {key for key, value in preset_keys(name).items() if default[key] == value}
    assert restated <= {"vocab_size", "max_position_embeddings"}


def test_from_preset_replaces_single_keys():
    config = VariantsConfig.from_preset("llama-3-8b", num_key_value_heads=4, attention_sinks=True)
    assert (config.hidden_size, config.num_key_value_heads, config.attention_sinks) == (4096, 4, True)
    assert VariantsConfig.from_preset("gpt2").to_dict() == load_preset("gpt2").to_dict()


def test_mistakes_of_presets_are_named(monkeypatch):
    with pytest.raises(ValueError, match="did you mean 'llama-3-8b'"):
        VariantsConfig.from_preset("llama-3-8")
    with pytest.raises(ValueError, match=r"did you mean 'tiny/mla'.*choose from \['tiny/alibi'"):
        load_preset("tiny/mlaa")
    with pytest.raises(ValueError, match="hidden_sizes"):
        load_preset("gpt2", hidden_sizes=1)
    monkeypatch.setattr(family_config, "PRESET_READERS", [])
    with pytest.raises(ValueError, match="install and import it"):
        VariantsConfig.from_preset("gpt2")


def tiny_model(name):
    """(model, labels it is trained on, given the ids): a classifier where the preset is of one, else a language model."""
    config = load_preset(name, vocab_size=61, initializer_range=0.1)
    torch.manual_seed(0)
    if name.startswith("tiny/classifier"):
        return VariantsForSequenceClassification(config), lambda ids: torch.tensor([0, 1])
    return (VariantsForCausalLM if config.is_causal else VariantsForMaskedLM)(config), lambda ids: ids


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_preset_takes_a_training_step(name):
    model, labels_of = tiny_model(name)
    ids = torch.randint(2, 61, (2, 48))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels_of(ids)}
    before = model(**batch).loss
    before.backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == [] and all(parameter.grad.isfinite().all() for parameter in model.parameters())
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    with torch.no_grad():
        assert model(**batch).loss < before


@cache
def tiny_configs():
    return {name: (load_preset(name), preset_keys(name)) for name in TINY}


def chosen(config, keys, field):
    """The choices of a string field that a preset takes, shorthands included."""
    if field == "rope_type":
        return {config.rope_of(key)["rope_type"] for key in config.rope_keys}
    value = getattr(config, field)
    return set(value) if isinstance(value, list) else {value, keys.get(field, value)}


# what joins two stacks is no choice of one
@pytest.mark.parametrize("field", [field for field in CHOICES if field != "decoder_start"])
def test_the_tiny_presets_take_every_choice(field):
    taken = set().union(*(chosen(*both, field) for both in tiny_configs().values()))
    assert taken >= set(CHOICES[field]), f"add model_configs/tiny/*.json for {sorted(set(CHOICES[field]) - taken)} of {field}"


def test_the_tiny_presets_turn_every_switch():
    """Every yes-or-no field of the architecture is set, against its default, by some tiny preset."""
    no_architecture = {"use_cache", "output_router_logits", "freeze_pad_embedding", "add_cross_attention"}
    given = set().union(*(preset_keys(name) for name in TINY))
    switches = {field.name for field in fields(VariantsConfig) if bool in (field.type, *get_args(field.type))}
    own = switches & set(VariantsConfig.own_fields())
    assert own - no_architecture <= given, f"add model_configs/tiny/*.json for {sorted(own - no_architecture - given)}"
