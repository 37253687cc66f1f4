"""Variants of the three designs, and the mistakes that are named before anything runs."""

import pytest

from hf_variants.ablation.planning import drafts
from hf_variants.ablation.variants import variants_of
from tests.ablation.tiny import spec_of

CHANGES = {"A": {"model.qk_norm": "head"}, "B": {"model.head_dim": None, "trainer.learning_rate": 0.1}}


def test_single_changes_start_from_the_base(tmp_path):
    found = variants_of(spec_of(tmp_path, variants=CHANGES, base_name="plain"))
    assert [(variant.name, variant.against) for variant in found] == [("plain", None), ("A", "plain"), ("B", "plain")]
    assert found[1].keys["model"]["qk_norm"] == "head" and "qk_norm" not in found[2].keys["model"]
    assert "head_dim" not in found[2].keys["model"] and found[0].keys["model"]["head_dim"] == 8
    assert found[2].keys["trainer"]["learning_rate"] == 0.1 and found[0].keys["trainer"]["learning_rate"] == 0.01


def test_a_staircase_adds_up(tmp_path):
    found = variants_of(spec_of(tmp_path, variants=CHANGES, design="staircase"))
    assert [variant.against for variant in found] == [None, "base", "A"]
    assert found[2].keys["model"]["qk_norm"] == "head" and "head_dim" not in found[2].keys["model"]


def test_a_grid_holds_every_combination(tmp_path):
    grid = {"model.qk_norm": ["none", "head"], "trainer.learning_rate": [0.01, 0.1]}
    found = variants_of(spec_of(tmp_path, variants={}, grid=grid, design="grid"))
    assert [variant.name for variant in found] == [
        *("qk_norm=none, learning_rate=0.01", "qk_norm=none, learning_rate=0.1"),
        *("qk_norm=head, learning_rate=0.01", "qk_norm=head, learning_rate=0.1"),
    ]
    assert found[0].against is None and {variant.against for variant in found[1:]} == {found[0].name}


def test_sections_and_another_reference(tmp_path):
    variants = {**CHANGES, "C": {"model": {"qk_norm": "full"}, "against": "A"}}
    found = variants_of(spec_of(tmp_path, variants=variants))
    assert found[3].changes == {"model.qk_norm": "full"} and found[3].against == "A"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"variants": {}}, "variants is empty"),
        ({"variants": {"A": {}}}, r"variants.A=\{\} must be a section"),
        ({"variants": {"A": {"data.source": "x"}}}, "variants.A: 'data.source' cannot be changed by a variant"),
        ({"variants": {"A": {"model.qk_norm": "head", "against": "bas"}}}, "against='bas' is no variant .did you mean 'base'"),
        ({"variants": {"a/b": {"model.qk_norm": "head"}}}, "is no name of a directory"),
        ({"variants": {"base": {"model.qk_norm": "head"}}}, "the name 'base' stands for two variants"),
        ({"grid": {"model.qk_norm": ["none"]}}, "grid has no effect with design='single'"),
        ({"design": "grid"}, "variants has no effect with design='grid'"),
        ({"variants": {"A": {"model.qk_nrm": "head"}}}, "variant 'A': .*did you mean 'qk_norm'"),
        ({"variants": {"A": {"trainer.learning_rat": 1.0}}}, "variant 'A': .*did you mean 'learning_rate'"),
        ({"variants": {"A": {"model.num_key_value_heads": 3}}}, "variant 'A': .*num_key_value_heads=3"),
        ({"base": {"seed": 3}}, "base.seed=3 does not belong here"),
        ({"base": {"data": {"sequence_length": 65}}}, "sequence_length=65 exceeds max_position_embeddings=64"),
        ({"base": {"trainer": {"max_steps": -1}}}, "base.trainer.max_steps is missing"),
    ],
)
def test_mistakes_are_named(tmp_path, keys, message):
    with pytest.raises(ValueError, match=message):
        drafts(spec_of(tmp_path, **keys))
