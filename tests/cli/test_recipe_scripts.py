"""Every recipe as a script and as a command: both run the same job with the same spec. `torchrun` and `accelerate launch`
start the script.
"""

import importlib
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from hf_variants import cli, jobs
from tests.training.test_every_key import RECIPES

COMMANDS = {"scaling_study": ["scaling", "study"], "vision_language": ["vision-language"]}


class Ran(BaseException):
    """Raised in place of the job, with the spec that it was given."""


def spec_given(run, recipe, monkeypatch):
    def job(spec, *args, **kwargs):
        raise Ran(spec)

    # scripts take the job from hf_variants.jobs, commands from the module that holds it
    monkeypatch.setattr(jobs, recipe, job, raising=False)
    monkeypatch.setattr(importlib.import_module(f"hf_variants.jobs.{jobs._WHERE[recipe]}"), recipe, job)
    with pytest.raises(Ran) as ran:
        run()
    return ran.value.args[0]


def test_every_recipe_has_a_short_script():
    scripts = {path.stem: path.read_text() for path in Path("recipes").glob("*.py")}
    assert scripts.keys() == jobs.RECIPES.keys() == RECIPES.keys()
    assert all(len(text.splitlines()) <= 100 for text in scripts.values())
    assert {name: spec for name, (spec, _) in RECIPES.items()} == jobs.RECIPES


@pytest.mark.parametrize("recipe", jobs.RECIPES)
def test_script_and_command_say_the_same(recipe, monkeypatch, tmp_path):
    file, script = tmp_path / "recipe.yaml", f"recipes/{recipe}.py"
    file.write_text(yaml.safe_dump(RECIPES[recipe][1]))
    word = f"{'output' if recipe in ('quickstart', 'evaluate', 'generate') else 'output_dir'}=other"

    def as_script(*words):
        monkeypatch.setattr(sys, "argv", [script, *words])
        monkeypatch.setattr(sys, "path", list(sys.path))
        return spec_given(lambda: runpy.run_path(script, run_name="__main__"), recipe, monkeypatch)

    def as_command(*words):
        return spec_given(lambda: cli.main([*COMMANDS.get(recipe, [recipe]), *words]), recipe, monkeypatch)

    first = as_command(str(file), word)
    assert type(first).__name__ == jobs.RECIPES[recipe] and "other" in vars(first).values()
    assert first == as_command("--config", str(file), word)
    assert first == as_script("--config", str(file), word) == as_script(str(file), f"--{word}")
