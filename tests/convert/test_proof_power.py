"""The proof of large models runs few tokens: what more of them would find is found by those few.

Notable here: every key of a config is given every other value that its rules allow, one at a time, and the native model is
compared with ours as that config builds it.
"""

import copy

import pytest
import torch
from native_cases import native_model

from hf_variants import VariantsConfig
from hf_variants.convert import from_native, proof
from hf_variants.convert.registry import find_family
from hf_variants.convert.sides import Side, memory_side
from hf_variants.convert.stages import MemoryTensors
from hf_variants.modeling.vocabulary import CHOICES

# No memory for gradients: as a large model is proven.
NO_MEMORY = 0
MANY = (2, 12)


def _other_values(name, value):
    """What a key could have been read as instead."""
    if name in CHOICES and isinstance(value, str):
        return [choice for choice in CHOICES[name] if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 2 * value]
    if isinstance(value, float):
        return [value * 1.25, value + 0.25]
    if isinstance(value, dict):
        return [{**value, key: other} for key, part in value.items() for other in _other_values(key, part)]
    if isinstance(value, list):
        changed = [(i, other) for i, part in enumerate(value) for other in _other_values(name, part)]
        return [value[:i] + [other] + value[i + 1 :] for i, other in changed]
    return []


def _mutants(config):
    """(key, config that differs in it) of every other value that the rules of the config allow."""
    given = {name: getattr(config, name) for name in config.own_fields()}
    for name, value in given.items():
        for other in _other_values(name, value):
            try:
                yield name, VariantsConfig(**{**copy.deepcopy(given), name: other})
            except (ValueError, TypeError):
                continue


def _agree(native, weights, config):
    """Whether the proof passes; weights that do not fit the config are told before it."""
    try:
        ours = Side(weights[0], config, torch.float32).hold(MemoryTensors(weights[1]))
        proof.prove(native, ours, find_family(native.config.model_type).rules("causal_lm"), NO_MEMORY)
    except (ValueError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "yarn"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("gemma2", "window"), ("deepseek_v3", "groups"), ("gpt_oss", "yarn"), ("bloom", "plain"))
        ),
    ],
)
def test_few_tokens_find_what_many_find(family, name, monkeypatch):
    model = native_model(family, name)
    native, ours = memory_side(model), from_native(model)
    weights = type(ours), dict(memory_side(ours).weights)
    assert _agree(native, weights, ours.config)
    mutants, passed = list(_mutants(ours.config)), {}
    for size in ((proof._FEWEST_ROWS, proof._FEWEST_TOKENS), MANY):
        monkeypatch.setattr(proof, "_FEWEST_ROWS", size[0])
        monkeypatch.setattr(proof, "_FEWEST_TOKENS", size[1])
        passed[size] = [key for key, config in mutants if _agree(native, weights, config)]
    few, many = passed.values()
    assert few == many
    # a key whose every other value is a model of its own
    assert not {"hidden_act", "norm_type", "norm_placement", "hidden_size", "sliding_window", "logits_scaling"} & set(few)
    assert len(few) < len(mutants) / 2
