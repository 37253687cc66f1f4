"""`import hf_variants` asks nothing of the network and loads none of the optional packages."""

import pytest

from tests.hub.clean import run_script

OPTIONAL = {
    "peft",
    "datasets",
    "matplotlib",
    "typer",
    "rich",
    "bitsandbytes",
    "evaluate",
    "pandas",
    "gguf",
    "hypothesis",
    "trl",
}


@pytest.mark.slow
def test_import_is_light_and_silent(tmp_path, record_property):
    found = run_script("import_alone.py", {}, tmp_path, {"HF_HUB_OFFLINE": "0"}, with_package=True)
    record_property("import_ms", round(found["ms"]))
    print(f"import hf_variants after torch and transformers: {found['ms']:.0f} ms")
    assert found["attempts"] == []
    assert not OPTIONAL & set(found["new"])
    rooms = {name.split(".")[1] for name in found["rooms"] if "." in name}
    assert not {"hub", "report", "cli", "jobs", "training", "evaluation", "convert", "context"} & rooms
    assert "Traceback" not in found["stderr"]
