"""The generated pages of docs/ say what the code says."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def load_generator():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["options.md", "rules.md", "pairs.md", "families.md", "presets.md", "vision_options.md"])
def test_generated_page_is_up_to_date(name):
    assert (DOCS / name).read_text(encoding="utf-8") == load_generator().PAGES[name](), "run: python docs/generate.py"


def test_every_choice_and_rule_is_listed():
    from hf_variants.modeling.config_rules import RULES
    from hf_variants.modeling.vocabulary import CHOICES

    options, rules = ((DOCS / name).read_text(encoding="utf-8") for name in ("options.md", "rules.md"))
    assert all(f"`{choice}`" in options for choices in CHOICES.values() for choice in choices)
    assert all(rule.name in rules for rule in RULES)


def test_the_page_on_adding_a_family_shows_a_family_as_it_is():
    page = (DOCS / "adding_a_family.md").read_text(encoding="utf-8")
    shown = page.split("```python\n")[1].split("```")[0]
    code = (DOCS.parent / "hf_variants/convert/families/arcee.py").read_text(encoding="utf-8")
    lines = [line.split("  #")[0].rstrip() for line in shown.splitlines() if line.strip()]
    assert all(line in code.splitlines() for line in lines)


def test_known_failures_name_tests_that_exist():
    rows = [line for line in (DOCS / "known_failures.md").read_text(encoding="utf-8").splitlines() if line.startswith("| B")]
    assert len(rows) > 40
    for row in rows:
        number, path = row.split("|")[1].strip(), DOCS.parent / row.rsplit("`", 2)[1]
        text = path.read_text(encoding="utf-8") + path.name
        assert number in text.upper(), f"{path} says nothing of {number}"


@pytest.mark.parametrize(
    "family, signs",
    [
        ("llama", {"gqa": "+", "attention_bias": "+", "rope llama3": "+", "sliding": "–", "alibi": "–", "experts": "–"}),
        ("gemma2", {"soft-cap": "●", "alternating": "●", "norm sandwich": "●", "sinks": "–", "tied head": "●"}),
        ("deepseek_v3", {"mla": "●", "experts": "●", "rope yarn": "+", "gqa": "–", "tied head": "+"}),
        ("bert", {"bidirectional": "●", "learned": "●", "mla": "–"}),
    ],
)
def test_what_families_make_of_toggles(family, signs):
    from hf_variants.convert.config_source import quiet

    with quiet():
        found = load_generator().family_signs(family)
    assert {name: found[name] for name in signs} == signs


@pytest.mark.slow
def test_the_page_of_families_and_toggles_is_up_to_date():
    page = load_generator().SLOW_PAGES["family_toggles.md"]()
    assert (DOCS / "family_toggles.md").read_text(encoding="utf-8") == page, "run: python docs/generate.py --all"
