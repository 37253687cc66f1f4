"""What is installed: dependencies that the code has, pins within their ranges, distributions that hold what they must."""

import ast
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hf_variants import __version__
from hf_variants.presets import list_presets

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# module -> what has to be installed for it, where the two have other names and it need not be installed here
DISTRIBUTIONS = {"awq": "autoawq", "lm_eval": "lm-eval", "gptqmodel": "gptqmodel", "optimum": "optimum-quanto"}
# AutoAWQ is archived by its authors, and nothing was tested together with it.
WITHOUT_A_PIN = {"autoawq"}


def requirements():
    """{name: Requirement} of the package and all of its extras, but for those that name the package itself."""
    texts = [*PROJECT["dependencies"], *sum(PROJECT["optional-dependencies"].values(), [])]
    found = {canonicalize_name(one.name): one for one in map(Requirement, texts)}
    return {name: one for name, one in found.items() if name != PROJECT["name"]}


def pins():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def imported_modules():
    """Top-level modules that files of the package import, here or within a function, without those of Python."""
    found = set()
    for path in (ROOT / "hf_variants").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"hf_variants"}


def test_everything_imported_is_declared():
    installed = packages_distributions()
    names = {DISTRIBUTIONS.get(module) or installed[module][0] for module in imported_modules()}
    assert {canonicalize_name(name) for name in names} <= set(requirements())


def test_every_requirement_has_a_pin_within_its_range():
    pinned = pins()
    for name, requirement in requirements().items():
        if name not in WITHOUT_A_PIN:
            assert requirement.specifier.contains(pinned[name]), f"{requirement} against {name}=={pinned[name]}"


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory):
    """The .tar.gz that is made of the files that the repository has; its names, without their common folder."""
    folder = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so nothing says which files belong to the repository")
    files = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    for name in files:
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).symlink_to(ROOT / name)
    code = f"import setuptools.build_meta as backend; backend.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=folder / "tree", check=True, capture_output=True)
    return next(folder.glob("*.tar.gz")), files


@pytest.mark.slow
def test_source_distribution_is_the_repository(source_distribution):
    archive, files = source_distribution
    with tarfile.open(archive) as made:
        names = {name.partition("/")[2] for name in made.getnames()}
    kept = {name for name in files if not name.startswith((".ci/", ".git"))}
    assert kept - names == set()


@pytest.mark.slow
def test_wheel_of_the_source_distribution_carries_presets_and_template(source_distribution, tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*command, str(source_distribution[0])], check=True, capture_output=True)
    made = next(tmp_path.glob("*.whl"))
    assert made.name == f"hf_variants-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(made) as wheel:
        names = set(wheel.namelist())
        wheel.extractall(tmp_path / "installed")
    assert {f"hf_variants/model_configs/{name}.json" for name in list_presets()} <= names
    code = {path.relative_to(ROOT).as_posix() for path in (ROOT / "hf_variants").rglob("*") if path.is_file()}
    assert {name for name in code if "__pycache__" not in name} <= names
    assert not any(name.startswith(("tests/", "recipes/", "benchmarks/")) for name in names)
    # torch itself warns while it is imported, so only the package alone can be asked for silence
    code = (
        "import hf_variants, warnings; warnings.simplefilter('default'); import hf_variants.presets as p; "
        "print(p.presets_folder().parent.parent, p.load_preset('gpt2').hidden_size)"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "installed"), "PATH": "", "HF_HUB_OFFLINE": "1"},
    )
    assert run.stdout.split() == [str(tmp_path / "installed"), "768"]
