"""Loading SmolLM2-135M's shape from disk, and the time that importing the package adds to importing transformers."""

import atexit
import shutil
import statistics
import subprocess
import sys
import tempfile

from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.case import OURS, Case, Ready
from benchmarks.pairs import SMOLLM2, models
from hf_variants.analysis import count_parameters
from hf_variants.convert import config_from_native

_IMPORT = "import torch, transformers, time; {before}; began = time.perf_counter(); {what}; print(time.perf_counter() - began)"
# what a program names first of either library: the classes of a causal language model
_NATIVE = "from transformers import AutoModelForCausalLM, LlamaForCausalLM, LlamaConfig"
_OURS = "import hf_variants; from hf_variants import VariantsForCausalLM, VariantsConfig"


def loads(sides):
    folder = tempfile.mkdtemp(prefix="benchmarks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = {}
    for side, model in models(LlamaConfig(**SMOLLM2), sides).items():
        target = f"{folder}/{side}"
        model.save_pretrained(target)

        def run(target=target):
            return AutoModelForCausalLM.from_pretrained(target).lm_head.weight[:4, :4].detach().clone()

        made[side] = Ready(run, 1)
    return made


def import_seconds(what, before="pass"):
    """Seconds of one import, alone in a fresh process, after `before`."""
    code = _IMPORT.format(before=before, what=what)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


class Imports:
    """One import per call in a process of its own; keeps what each took."""

    def __init__(self, what, before):
        self.what, self.before, self.taken = what, before, []

    def __call__(self):
        self.taken.append(import_seconds(self.what, self.before))


def imports(sides):
    options = {"native": (_NATIVE, "pass"), "ours": (_OURS, _NATIVE)}
    return {side: Ready(Imports(*options[side]), 1) for side in sides}


def bytes_loaded():
    return 4 * count_parameters(config_from_native(LlamaConfig(**SMOLLM2))).total


def added_milliseconds(sides):
    """{"import_ms"}: median milliseconds that importing the family's classes takes once transformers' own are imported.

    The first import is not counted.
    """
    return {"import_ms": 1e3 * statistics.median(sides[OURS].run.taken[1:])}


CASES = [
    Case(
        "load",
        "from_pretrained, SmolLM2-135M's shape, fp32",
        loads,
        targets={"speed": 0.952},
        unit="loads",
        bytes=bytes_loaded,
        rounds=6,
        seconds=20.0,
    ),
    Case(
        "import",
        "a fresh process that imports torch, transformers' Llama, and (ours) the family's classes",
        imports,
        targets={"import_ms": 150},
        unit="imports",
        rounds=9,
        seconds=80.0,
        tolerance=None,
        also=added_milliseconds,
    ),
]
