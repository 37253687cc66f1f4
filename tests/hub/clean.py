"""Runs a script of this folder in a process of its own, with or without hf_variants; what travels to such a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The package is installed where the tests run, so leaving its folder is not enough to be without it.
_BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hf_variants", "tests"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def room():
    """Names of the files that travel with a checkpoint."""
    return {path.name for path in (ROOT / "hf_variants" / "modeling").glob("*.py")} - {"__init__.py"}


def run_script(name, task, folder, environment=(), with_package=False):
    """Run tests/hub/`name` with `task` (JSON) and return the JSON that it writes.

    `with_package=False` makes `import hf_variants` fail in it. It starts in `folder`, with its caches there.
    """
    folder = Path(folder)
    (folder / "task.json").write_text(json.dumps(task))
    script = f"import runpy, sys\nsys.argv = [{name!r}, 'task.json', 'result.json']\n"
    script += f"runpy.run_path({str(Path(__file__).with_name(name))!r}, run_name='__main__')\n"
    home = {"HF_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    path = {"PYTHONPATH": str(ROOT)} if with_package else {}
    done = subprocess.run(
        [sys.executable, "-c", script if with_package else _BLOCK + script],
        cwd=folder,
        env={**os.environ, **home, **path, **dict(environment)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return {**json.loads((folder / "result.json").read_text()), "stderr": done.stderr, "stdout": done.stdout}
