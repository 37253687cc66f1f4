"""Whatever is imported first, the family is registered when a program can use it, and nothing heavy is imported before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hf_variants
from tests.hub.clean import ROOT

HEAVY = ("torch", "transformers", "numpy", "peft", "accelerate", "datasets", "matplotlib", "huggingface_hub")

# What a user writes first; `CHECK` then uses the family as any of transformers' models.
ORDERS = {
    "auto config": "import hf_variants; from transformers import AutoConfig",
    "package last": "from transformers import AutoModelForCausalLM, Trainer; import peft; import hf_variants",
    "a native model, whose file imports the Auto classes half-way": "import hf_variants; from transformers import LlamaModel",
    "trainer": "import hf_variants; from transformers import Trainer",
    "peft": "import hf_variants; import peft",
    "the config alone": "from hf_variants.modeling.configuration_variants import VariantsConfig",
    "a file of the room": "from hf_variants.modeling.variants_model import VariantsModel",
    "a tool": "from hf_variants.convert import from_native",
}
CHECK = """
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.for_model("variants", vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
assert type(AutoModelForCausalLM.from_config(config)).__module__ == "hf_variants.modeling.modeling_variants"
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
assert AUTO_QUANTIZER_MAPPING["awq"].__module__ == "hf_variants.modeling.awq_loading"
from hf_variants.modeling.variants_base import AFTER_SAVE
assert len(AFTER_SAVE) == 1
from transformers import trainer
assert [c.__name__ for c in trainer.DEFAULT_CALLBACKS].count("ExpertMetricsCallback") == 1
import peft.tuners.tuners_utils as tuners
assert tuners.BaseTuner.inject_adapter.reaches_variants
"""


def python(code):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["pretrain", "--help"], ["evaluate", "modl_path=x"], ["describe", "llama-3-9b"], ["nonsense"]],
    ids=" ".join,
)
def test_help_and_mistakes_of_the_command_line_import_nothing_heavy(arguments):
    done = python(f"""
import sys
from hf_variants import cli
try:
    cli.main({arguments})
except SystemExit as stop:
    loaded = {{name.partition(".")[0] for name in sys.modules}}
    print("code", stop.code or 0, sorted(loaded & set({HEAVY})))
""")
    expected = 0 if "--help" in arguments else 2
    assert done.stdout.splitlines()[-1:] == [f"code {expected} []"], done.stdout + done.stderr


def test_importing_the_package_imports_nothing_heavy():
    done = python(
        f"import sys, hf_variants; print(sorted(set(sys.modules) & set({HEAVY})), 'VariantsConfig' in dir(hf_variants))"
    )
    assert done.stdout.strip() == "[] True", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_the_family_is_registered_in_every_order_of_imports(order):
    done = python(f"{ORDERS[order]}\n{CHECK}")
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_room_is_at_hand_as_an_attribute():
    """`import hf_variants` is enough for `hf_variants.ROOM.name`, as the documentation writes it."""
    package = Path(hf_variants.__file__).parent
    rooms = {path.parent.name for path in package.glob("*/__init__.py")} - {"modeling", "cli"}
    assert rooms <= set(hf_variants._ROOMS)
    assert all(getattr(hf_variants, room).__name__ == f"hf_variants.{room}" for room in hf_variants._ROOMS)
