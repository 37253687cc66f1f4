"""The hand-written pages name commands, options, keys, modules and files that exist.

Notable here: lines are read, not run. Placeholders in capitals stand for checkpoints; `key=value` words are held against
the recipe's dataclass, or against the config of the family where a command takes those.
"""

import dataclasses
import re
import shlex
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.main import get_command

from hf_variants import VariantsConfig, VariantsSeq2SeqConfig, jobs
from hf_variants.cli.app import make_app
from hf_variants.training.spec_parsing import describe_keys

ROOT = Path(__file__).parent.parent
PAGES = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
# command -> recipe whose keys its words are, where the two have other names
RECIPE_OF = {"vision-language": "vision_language", "scaling study": "scaling_study"}
FREE = ("model", "encoder", "decoder", "trainer", "base", "options")


def code_of(page):
    """The lines of a page's blocks of code, continued ones joined, and its code within sentences."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return lines + re.findall(r"`([^`\n]+)`", outside)


def commands_of(page):
    """The words behind `hf-variants` of each line that has them, without comments."""
    lines = (re.search(r"(?<![\w/-])hf-variants +([a-z].*)", line) for line in code_of(page))
    return [shlex.split(found[1], comments=True) for found in lines if found]


@cache
def app():
    return get_command(make_app())


def resolve(words):
    """(name, command or group of them, remaining words) of the command line."""
    command, name = app(), []
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no command {' '.join([*name, words[0]])!r}"
        name.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    return " ".join(name), command, words


def keys_of(name):
    """(dotted keys of the recipe that a command runs, their sections), or None for other commands."""
    recipe = RECIPE_OF.get(name, name)
    if recipe not in jobs.RECIPES:
        return None
    keys = {row[0] for row in describe_keys(getattr(jobs, jobs.RECIPES[recipe]))}
    return keys | {key.rsplit(".", 1)[0] for key in keys if "." in key}


@cache
def config_fields():
    return {field.name for kind in (VariantsConfig, VariantsSeq2SeqConfig) for field in dataclasses.fields(kind)}


def check(words):
    name, command, words = resolve(words)
    options = {option: one for one in command.params for option in (*one.opts, *one.secondary_opts)}
    keys, words = keys_of(name), iter(words)
    for word in words:
        if word.startswith("--"):
            option = word.split("=")[0]
            known = option in (*options, "--help") or option.removeprefix("--").replace("-", "_") in (keys or ())
            assert known, f"{name} has no option {option}"
            if option in options and not options[option].is_flag:
                next(words, None)
        elif found := re.fullmatch(r"([a-z_][\w.]*)=.*", word):
            key = found[1]
            if keys is None:
                assert key.split(".")[-1] in config_fields(), f"{name}: {key} is no key of a config"
            else:
                assert key in keys or key.split(".")[0] in FREE, f"{name} has no key {key}"
        elif word.endswith((".yaml", ".yml")) and word.startswith("recipes/"):
            assert (ROOT / word).is_file(), f"{word} does not exist"


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if commands_of(page)])
def test_commands_exist(name):
    for words in commands_of(PAGES[name]):
        check(words)


def test_what_does_not_exist_is_found():
    wrong = "quantise A B, scaling plans, count A --lenght 3, count A num_head=2, extend factr=4, extend --factr 4"
    for line in wrong.split(", "):
        with pytest.raises(AssertionError, match=" no "):
            check(line.split())
    check(["pretrain", "recipes/pretrain.yaml", "trainer.max_steps=2", "data.source=a.txt", "--seed", "1"])


@pytest.mark.parametrize("name", PAGES)
def test_links_files_and_modules_exist(name):
    page = PAGES[name]
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert target.startswith("http") or (page.parent / target).exists(), f"the link {target} leads nowhere"
    # what lies below runs/ is made by who runs a command
    for path in re.findall(r"(?<!runs/)\b((?:tests|recipes|hf_variants|docs|benchmarks|model_configs)/[\w./-]*\w)", text):
        assert (ROOT / path).exists() or not Path(path).suffix, f"{path} does not exist"
    for module in re.findall(r"python -m (benchmarks[\w.]*)", text):
        assert find_spec(module) is not None, f"there is no module {module}"
