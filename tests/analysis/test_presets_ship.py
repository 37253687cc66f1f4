"""An installed wheel carries the presets and the report's template, not only a source tree."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hf_variants.presets import list_presets

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_wheel_carries_presets_and_template(tmp_path):
    pytest.importorskip("setuptools")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("hf_variants", "model_configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        wheel.extractall(tmp_path / "installed")
    assert {f"hf_variants/model_configs/{name}.json" for name in list_presets()} <= names
    assert "hf_variants/report/template.html" in names
    code = "import hf_variants.presets as p; print(p.presets_folder().parent.parent, p.load_preset('gpt2').hidden_size)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "installed"), "PATH": "", "HF_HUB_OFFLINE": "1"},
    )
    assert run.stdout.split() == [str(tmp_path / "installed"), "768"]
