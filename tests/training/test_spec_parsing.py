"""Recipes: YAML, flags and Python give the same checked dataclass; mistakes name the nearest key."""

import pytest

from hf_variants.jobs.specs import QuickstartSpec
from hf_variants.jobs.whole_job import stage_specs
from hf_variants.presets import preset_keys
from hf_variants.training.idle_keys import idle_tokenizer_keys, refuse_idle_tokenizer_keys
from hf_variants.training.models import build_config, model_section
from hf_variants.training.spec_parsing import (
    build_spec,
    describe_keys,
    load_spec,
    parse_value,
    parse_words,
    read_recipe,
)
from hf_variants.training.specs import TrainingSpec

RECIPE = """
output_dir: run
data: {source: text.txt, sequence_length: 64}
trainer:
  learning_rate: 1e-3
  max_steps: 10
"""


def test_yaml_flags_and_python_are_one(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE)
    from_yaml = load_spec(TrainingSpec, file)
    words = ["output_dir=run", "data.source=text.txt", "--data.sequence_length", "64", "--trainer.learning-rate=1e-3"]
    from_words = load_spec(TrainingSpec, None, [*words, "trainer.max_steps=10"])
    data = {"source": "text.txt", "sequence_length": 64}
    from_python = build_spec(
        TrainingSpec, {"output_dir": "run", "data": data, "trainer": {"learning_rate": 1e-3, "max_steps": 10}}
    )
    assert from_yaml == from_words == from_python
    assert from_yaml.trainer == {"learning_rate": 0.001, "max_steps": 10}


def test_the_recipe_may_be_the_first_word(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE)
    assert load_spec(TrainingSpec, None, [str(file), "seed=3"]) == load_spec(TrainingSpec, file, ["seed=3"])
    with pytest.raises(ValueError, match="two recipes are given"):
        load_spec(TrainingSpec, file, [str(file)])
    with pytest.raises(ValueError, match="is no setting; write key=value .* after the recipe.yaml"):
        load_spec(TrainingSpec, None, ["seed=3", str(file)])


def test_words_win_over_yaml_and_the_last_word_wins(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE)
    spec = load_spec(TrainingSpec, file, ["data.sequence_length=8", "data.sequence_length=16"])
    assert spec.data.sequence_length == 16
    assert spec.data.source == "text.txt"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("3", 3),
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ("a.txt", "a.txt"),
        ("2.5E+2", 250.0),
        ("{a: 1}", {"a": 1}),
        ("'3'", "3"),
        ("en to de: the third", "en to de: the third"),
        ("a: b: c", "a: b: c"),
        ("answer #3", "answer #3"),
        ("# A title", "# A title"),
        ("one\ntwo ", "one\ntwo "),
        ("50% of it? *yes*", "50% of it? *yes*"),
    ],
)
def test_values_are_yaml(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"output_dirs": "x"}, "unknown key 'output_dirs' (did you mean 'output_dir'?)"),
        (
            {"output_dir": "x", "data": {"sequence_lenght": 4}},
            "'data.sequence_lenght' (did you mean 'sequence_length'?)",
        ),
        (
            {"output_dir": "x", "data": {"sequence_length": "long"}},
            "data.sequence_length='long' is a str; it must be int",
        ),
        ({"output_dir": "x", "seed": True}, "seed=True is a bool; it must be int"),
        ({"output_dir": "x", "data": 3}, "data=3 must be a section of keys"),
        ({"output_dir": "x", "dtype": "bfloat61"}, "dtype='bfloat61' is unknown (did you mean 'bfloat16'?)"),
        ({}, "key 'output_dir' is missing"),
    ],
)
def test_mistakes_are_named(mapping, message):
    with pytest.raises(ValueError) as caught:
        build_spec(TrainingSpec, mapping)
    assert message in str(caught.value)


def test_malformed_recipes(tmp_path):
    with pytest.raises(ValueError, match="is not a file"):
        read_recipe(tmp_path / "absent.yaml")
    for text, message in (("a: [1", "not valid YAML"), ("- 1", "holds a list")):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_recipe(tmp_path / "bad.yaml")


@pytest.mark.parametrize("words", [["steps"], ["--steps"]])
def test_words_without_value(words):
    with pytest.raises(ValueError, match="write key=value"):
        parse_words(words)


def test_every_key_has_a_help_text():
    rows = describe_keys(TrainingSpec)
    assert len(rows) > 20
    assert all(help for _, _, _, help in rows)


def test_trainer_section_is_checked_against_training_arguments():
    from hf_variants.training.arguments import check_trainer_section, training_arguments

    assert check_trainer_section({"learning_rate": 1, "max_steps": 3}) == {"learning_rate": 1.0, "max_steps": 3}
    with pytest.raises(ValueError, match="trainer.max_stps'.*did you mean 'max_steps'"):
        check_trainer_section({"max_stps": 3})
    with pytest.raises(ValueError, match="trainer.max_steps='many' is a str; it must be int"):
        check_trainer_section({"max_steps": "many"})
    with pytest.raises(ValueError, match="trainer.seed=1 does not belong here; use seed at the top"):
        check_trainer_section({"seed": 1})
    spec = TrainingSpec(output_dir="run", trainer={"lr_scheduler_type": "cosin"})
    with pytest.raises(ValueError, match="trainer: .*cosin"):
        training_arguments(spec)


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (["model=gpt2"], "gpt2"),
        (["model=gpt2", "model.hidden_size=96"], {"preset": "gpt2", "hidden_size": 96}),
        (
            ["model=gpt2", "--model.hidden-size", "96", "model.vocab_size=10"],
            {"preset": "gpt2", "hidden_size": 96, "vocab_size": 10},
        ),
        (["model.hidden_size=96", "model=gpt2"], "gpt2"),
        (["model.preset=gpt2", "model.hidden_size=96"], {"preset": "gpt2", "hidden_size": 96}),
    ],
)
def test_single_keys_of_a_preset_are_replaced(words, model):
    assert load_spec(TrainingSpec, None, ["output_dir=x", *words]).model == model
    replaced = {key: value for key, value in model.items() if key != "preset"} if isinstance(model, dict) else {}
    assert model_section(model) == {**preset_keys("gpt2"), **replaced}


def test_a_quickstart_section_replaces_single_keys_of_its_recipes_preset():
    spec = load_spec(QuickstartSpec, "recipes/quickstart.yaml", ["pretrain.model.hidden_size=64"])
    assert stage_specs(spec)["pretrain"].model == {"preset": "quickstart", "hidden_size": 64}


def test_what_a_section_starts_from_is_checked():
    with pytest.raises(ValueError, match=r"model.preset=3 is a int"):
        model_section({"preset": 3})
    with pytest.raises(ValueError, match="did you mean 'gpt2'"):
        model_section({"preset": "gpt3", "hidden_size": 8})


def test_token_ids_are_the_tokenizers_unless_written():
    class Tokenizer:
        bos_token_id, eos_token_id, pad_token_id = 1, 2, None

        def __len__(self):
            return 16

    config = build_config("llama-3-8b", Tokenizer())
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, None)
    config = build_config({"preset": "tiny/mla", "eos_token_id": 7}, Tokenizer())
    assert (config.bos_token_id, config.eos_token_id, config.vocab_size) == (1, 7, 16)


def test_a_word_that_leaves_keys_of_the_recipe_without_effect_says_so(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("output_dir: out\ntokenizer: {vocab_size: 512, eos_token: <e>}\n")
    spec = load_spec(TrainingSpec, str(recipe), ["tokenizer.path=somewhere"])
    assert spec.tokenizer.path == "somewhere" and not idle_tokenizer_keys(spec)
    shown = capsys.readouterr().out
    assert "tokenizer.vocab_size=512 is unused, since tokenizer.path='somewhere' is given" in shown and "<e>" in shown
    load_spec(TrainingSpec, str(recipe), ["tokenizer.vocab_size=600"])
    load_spec(TrainingSpec, str(recipe), ["tokenizer.path=null"])
    assert not capsys.readouterr().out


def test_a_word_that_names_held_out_documents_replaces_how_they_are_held_out(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("output_dir: out\ndata: {source: a.txt, eval_fraction: 0.3, split_seed: 4}\n")
    spec = load_spec(TrainingSpec, str(recipe), ["data.eval_source=b.txt"])
    assert (spec.data.eval_source, spec.data.eval_fraction, spec.data.split_seed) == ("b.txt", 0.05, 0)
    shown = capsys.readouterr().out
    assert "data.eval_fraction=0.3 is unused, since data.eval_source='b.txt' is given" in shown and "split_seed=4" in shown
    assert load_spec(TrainingSpec, str(recipe), ["data.eval_source=null"]).data.eval_fraction == 0.3
    assert not capsys.readouterr().out


@pytest.mark.parametrize("owner", ["tokenizer.path", "model_path"])
def test_keys_of_a_tokenizer_that_is_loaded_are_refused_where_they_are_given_beside_it(owner):
    words = ["output_dir=out", f"{owner}=somewhere", "tokenizer.vocab_size=600"]
    words += ["model=tiny/mla"] if owner == "tokenizer.path" else []
    with pytest.raises(ValueError, match=f"tokenizer.vocab_size=600 has no effect: {owner}='somewhere' brings the tokenizer"):
        refuse_idle_tokenizer_keys(load_spec(TrainingSpec, None, words))
    refuse_idle_tokenizer_keys(load_spec(TrainingSpec, None, ["output_dir=out", "tokenizer.vocab_size=600"]))
