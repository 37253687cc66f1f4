"""Native keys that act in training alone and that no toggle means: every one converts, is told, and goes back as it was.

Notable here: the keys are read off the rules of all families, and each is shown to be alive in native training, and dead
everywhere else and in what the model becomes.
"""

import logging

import encoder_cases
import native_cases
import pytest
import seq2seq_cases
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from hf_variants.convert import config_from_native, config_to_native, convert_checkpoint, find_family, from_native
from hf_variants.convert.config_conversion import as_plain_dict
from hf_variants.convert.config_map import TrainingOnly
from hf_variants.convert.quiet import quiet
from hf_variants.convert.registry import known_families

KEYS = [
    (found.model_type, rule.key) for found in known_families() for rule in found.every_rule() if isinstance(rule, TrainingOnly)
]


def case_of(family):
    """(module of cases, arguments that name the first case of a family there)."""
    for module in (native_cases, encoder_cases, seq2seq_cases):
        for case in module.CASES:
            if case[0] == family:
                return module, case
    raise AssertionError(f"{family} has no case")


def changed(family, key, rate):
    """Native config of the family's first case with `key` at `rate`, and all others of the kind off."""
    module, case = case_of(family)
    config = module.native_config(case) if module is seq2seq_cases else module.native_config(*case)
    for other in [known for name, known in KEYS if name == family]:
        *path, last = other.split(".")
        part = config
        for name in path:
            part = getattr(part, name)
        setattr(part, last, rate if other == key else 0.0)
    # what stands in several places is set in all of them by the class
    return type(config).from_dict(config.to_dict())


_CLASSES = {native_cases: AutoModelForCausalLM, encoder_cases: AutoModelForMaskedLM, seq2seq_cases: AutoModelForSeq2SeqLM}


def built(family, config):
    torch.manual_seed(0)
    return _CLASSES[case_of(family)[0]].from_config(config, dtype=torch.float32).eval()


@torch.no_grad()
def states(model):
    ids = torch.arange(5, 19).reshape(2, 7)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        inputs |= {"decoder_input_ids": ids}
    torch.manual_seed(1)
    return model(**inputs).logits


@pytest.mark.parametrize(("family", "key"), KEYS)
def test_alive_in_native_training_alone(family, key):
    off, on = (built(family, changed(family, key, rate)) for rate in (0.0, 0.9))
    on.load_state_dict(off.state_dict())
    assert torch.equal(states(off), states(on))
    ours, without = from_native(on), from_native(off)
    assert (states(ours) - states(on)).abs().max() <= 1e-5
    assert not torch.equal(states(on.train()), states(off.train()))
    assert torch.equal(states(ours.train()), states(without.train()))


@pytest.mark.parametrize(("family", "key"), KEYS)
def test_told_and_kept(family, key, caplog):
    native = changed(family, key, 0.1)
    with caplog.at_level(logging.WARNING):
        config = config_from_native(native)
    assert f"{family} trains otherwise than what it becomes: {key}=0.1: natively it " in caplog.text
    back = config_to_native(config)
    assert as_plain_dict(back) == as_plain_dict(native)
    # where nothing is kept the key is off, whatever the default of the native class
    config.native = None
    assert not find_family(family).untrained(config_to_native(config, family))


def test_whoever_only_compares_is_told_nothing(caplog):
    with caplog.at_level(logging.WARNING), quiet():
        config_from_native(changed("m2m_100", "encoder_layerdrop", 0.1))
    assert not caplog.text


def test_the_keys_of_every_kind_are_among_them():
    assert {("m2m_100", "encoder_layerdrop"), ("opt", "layerdrop"), ("phimoe", "input_jitter_noise")} <= set(KEYS)


def test_the_report_and_the_card_say_it(tmp_path):
    built("m2m_100", changed("m2m_100", "encoder_layerdrop", 0.05)).save_pretrained(tmp_path / "native")
    report = convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    said = "encoder_layerdrop=0.05: natively it leaves whole layers out, here it does nothing"
    assert said in report["untrained"]
    assert said in (tmp_path / "ours" / "README.md").read_text()
    again = convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    assert said in again["untrained"]
    before, after = ((tmp_path / name / "config.json").read_text() for name in ("native", "back"))
    assert before == after
