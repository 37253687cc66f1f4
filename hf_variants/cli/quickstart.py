"""`hf-variants quickstart`: recipes/quickstart.yaml unless another recipe is named."""

from pathlib import Path
from typing import Annotated

import typer

from ..jobs.specs import QuickstartSpec
from ..training.spec_parsing import load_spec, split_recipe
from .console import announce
from .recipe_command import SETTINGS, Config, Words


def add_to(app):
    app.command("quickstart", context_settings=SETTINGS)(quickstart)


def quickstart(
    words: Words = None,
    config: Config = None,
    output: Annotated[str, typer.Option(help="Directory of the run.")] = "",
    overwrite: Annotated[bool, typer.Option(help="Start stages afresh whose settings changed.")] = False,
):
    """Pretrain, evaluate, extend, quantize, generate and report on the shipped text; continues where it stopped."""
    from ..jobs.whole_job import quickstart as run

    config, words = split_recipe(config, words or ())
    spec = load_spec(QuickstartSpec, config or shipped_recipe(), words)
    spec.output, spec.overwrite = output or spec.output, overwrite or spec.overwrite
    run(spec, announce)


def shipped_recipe():
    """Path of recipes/quickstart.yaml. Raises ValueError where only the package is installed."""
    path = Path(__file__).resolve().parents[2] / "recipes" / "quickstart.yaml"
    if not path.is_file():
        raise ValueError(f"config is not given and {path} is missing; recipes and text come with the repository")
    return str(path)
