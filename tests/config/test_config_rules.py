"""Every rule of the table refuses at least one config that breaks it alone, with a text that says what to do."""

from typing import get_args

import pytest
from rule_cases import BASE, BROKEN, CHANGED

from hf_variants import VariantsConfig, VariantsModel
from hf_variants.modeling import configuration_variants
from hf_variants.modeling.config_rules import RULES

NAMES = [rule.name for rule in RULES]


def test_names_are_unique():
    assert len(set(NAMES)) == len(NAMES)


def test_every_case_names_a_rule():
    assert set(BROKEN) <= set(NAMES)


def test_every_rule_has_a_case():
    assert [name for name in NAMES if name not in BROKEN and name not in CHANGED] == []


@pytest.mark.parametrize("name", BROKEN)
def test_rule_refuses_the_config_that_breaks_it_alone(name, monkeypatch):
    rule = RULES[NAMES.index(name)]
    with pytest.raises(ValueError) as error:
        VariantsConfig(**{**BASE, **BROKEN[name]})
    for field, value in BROKEN[name].items():
        if f"{{c.{field}" in rule.text:
            assert field in str(error.value) and str(value) in str(error.value)
    config = unchecked(monkeypatch, BROKEN[name])
    assert [other.name for other in RULES if other.broken(config)] == [name]
    with pytest.raises(ValueError) as again:
        VariantsModel(config)
    assert str(again.value) == str(error.value)


@pytest.mark.parametrize("name", CHANGED)
def test_rule_refuses_a_changed_config_when_a_model_is_built(name):
    keys, changes = CHANGED[name]
    config = VariantsConfig(**BASE, **keys)
    for field, value in changes.items():
        setattr(config, field, value)
    assert [rule.name for rule in RULES if rule.broken(config)] == [name]
    with pytest.raises(ValueError, match=next(iter(changes))):
        VariantsModel(config)


def test_the_base_of_the_cases_breaks_nothing():
    config = VariantsConfig(**BASE)
    assert [rule.name for rule in RULES if rule.broken(config)] == []


def unchecked(monkeypatch, keys):
    """The config that `keys` would make if no rule refused it."""
    with monkeypatch.context() as patch:
        patch.setattr(configuration_variants, "check_rules", lambda config: None)
        return VariantsConfig(**{**BASE, **keys})


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.name.endswith(" is positive")], ids=lambda rule: rule.name)
def test_none_is_offered_where_a_field_may_be_none_alone(rule):
    may_be_none = type(None) in get_args(VariantsConfig.__annotations__[rule.name.removesuffix(" is positive")])
    assert ("None" in rule.text) is may_be_none


def test_no_heads_are_refused_by_their_own_name():
    with pytest.raises(ValueError, match="^num_attention_heads=0 must be greater than zero$"):
        VariantsConfig(num_attention_heads=0)
