"""The rules of the room that travels, and the direction in which rooms import each other, read from the source."""

import ast
import re
import sys
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_relative_import_files

import hf_variants
from hf_variants.modeling import configuration_image_encoder
from hf_variants.modeling.configuration_variants import _AUTO_MAP
from hf_variants.modeling.configuration_variants_seq2seq import _AUTO_MAP as _SEQ2SEQ_AUTO_MAP

PACKAGE = Path(hf_variants.__file__).parent
ROOM = PACKAGE / "modeling"
FILES = sorted(path for path in ROOM.glob("*.py") if path.name != "__init__.py")
# safetensors comes with transformers
TRAVELLING_PACKAGES = {"torch", "transformers", "safetensors", *sys.stdlib_module_names}

# Each room may import those before it in its own chain: modeling <- convert <- analysis <- tools <- hub, jobs <- cli.
BELOW = {
    "lazy_names": set(),
    "modeling": set(),
    "presets": {"modeling"},
    "convert": {"modeling", "presets"},
    "analysis": {"modeling", "convert"},
    "metrics": {"modeling", "analysis", "evaluation", "training"},
    "report": {"modeling", "analysis"},
    "evaluation": {"modeling", "analysis", "convert"},
    "surgery": {"modeling", "analysis", "convert"},
    "context": {"modeling", "analysis", "convert", "evaluation", "training"},
    "quantize": {"modeling", "analysis", "convert", "evaluation"},
    "training": {"modeling", "analysis", "convert", "presets", "evaluation", "hub", "report"},
    "ablation": {"modeling", "analysis", "report", "training"},
    "finetune": {"modeling", "analysis", "convert", "presets", "evaluation", "metrics", "training", "hub", "report"},
    "seq2seq": {"modeling", "training", "finetune", "metrics", "hub", "report"},
    "hub": {"modeling", "analysis", "convert"},
    "diagnostics": {"modeling", "analysis", "report"},
    "vision_language": {"modeling", "analysis", "report", "training", "diagnostics"},
    "scaling": {"analysis", "report"},
    "tokens": {"analysis", "report", "training"},
    "studies": {"modeling", "analysis", "report", "evaluation", "training", "context", "ablation", "scaling"},
}
TOP = {"cli", "jobs", "__init__", "registration", "peft_support", "trl_support", "callbacks", "when_imported"}


def imports(path):
    """(level, module, names) of every import statement of a file, at any depth."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names]


def rooms_imported(path):
    """Rooms of the package that a file imports, its own included."""
    depth = path.relative_to(PACKAGE).parts
    for level, module, names in imports(path):
        if level == 0:
            parts = module.split(".")
            if parts[0] == "hf_variants":
                yield from parts[1:2] or names
        else:
            start = list(depth[: len(depth) - level])
            yield from (start + (module.split(".") if module else names))[:1]


def test_the_room_is_flat_with_unique_names():
    assert [path for path in ROOM.iterdir() if path.is_dir() and path.name != "__pycache__"] == []
    elsewhere = {"config.json", "README.md", "tokenizer.json", "model.safetensors"}
    assert len({path.name.lower() for path in FILES}) == len(FILES) and not elsewhere & {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_room_files_import_what_travels(path):
    for level, module, _ in imports(path):
        if level:
            assert level == 1 and re.fullmatch(r"\w+", module), f"{path.name}: relative import {'.' * level}{module}"
            assert (ROOM / f"{module}.py").is_file()
    for node in ast.parse(path.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert {name.split(".")[0] for name in names} <= TRAVELLING_PACKAGES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_transformers_finds_no_import_that_is_none(path):
    """transformers reads import statements by a pattern that also matches a docstring line."""
    found = {Path(file).stem for file in get_relative_import_files(path)}
    text = path.read_text()
    direct = set(re.findall(r"^\s*from\s+\.(\S+)\s+import", text, flags=re.MULTILINE))
    assert direct == {module for level, module, _ in imports(path) if level}
    assert all((ROOM / f"{name}.py").is_file() for name in found)


ENTRIES = {
    **_AUTO_MAP,
    **{f"pair {name}": value for name, value in _SEQ2SEQ_AUTO_MAP.items()},
    **{f"image {name}": value for name, value in configuration_image_encoder._AUTO_MAP.items()},
}


@pytest.mark.parametrize("entry", sorted({value.split(".")[0] for value in ENTRIES.values()}))
def test_every_entry_reaches_the_whole_room(entry):
    reached = {Path(file).name for file in get_relative_import_files(ROOM / f"{entry}.py")} | {f"{entry}.py"}
    assert reached == {path.name for path in FILES}


def test_no_config_class_is_compared_by_identity():
    """A remote process can hold two copies of a class; the config's own class method is the one place that may ask."""
    for path in FILES:
        for line in path.read_text().splitlines():
            assert not re.search(r"isinstance\([^)]*, VariantsConfig\)|type\(config\) is", line), f"{path.name}: {line}"


@pytest.mark.parametrize("room", sorted(BELOW))
def test_rooms_import_downwards(room):
    files = [PACKAGE / f"{room}.py"] if (PACKAGE / f"{room}.py").is_file() else sorted((PACKAGE / room).rglob("*.py"))
    for path in files:
        for other in set(rooms_imported(path)) - {room}:
            assert other in BELOW[room] | {"lazy_names"}, (
                f"{path.relative_to(PACKAGE)} imports {other}; {room} may import {sorted(BELOW[room])}"
            )


def test_every_room_has_its_place():
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert found <= set(BELOW) | TOP
