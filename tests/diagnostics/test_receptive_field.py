"""The field counted from the layers is the field that changed tokens show."""

import json

import pytest
import torch

from hf_variants import VariantsConfig, VariantsModel, cli
from hf_variants.diagnostics import predicted_reach, receptive_field

BASE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
# name -> keys, first position that the last of 32 sees
STACKS = {
    "one window": ({"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": 5}, 27),
    "three windows": ({"layer_types": ["sliding_attention"] * 3, "sliding_window": 5}, 31 - 3 * 4),
    "windows below a full layer": ({"layer_types": ["sliding_attention"] * 2 + ["full_attention"], "sliding_window": 5}, 0),
    "chunks": ({"layer_types": ["chunked_attention"] * 3, "attention_chunk_size": 12}, 24),
    "a window over chunks": (
        {"layer_types": ["chunked_attention"] * 2 + ["sliding_attention"], "attention_chunk_size": 12, "sliding_window": 10},
        12,
    ),
    "full": ({}, 0),
    "encoder": ({"is_causal": False, "layer_types": ["sliding_attention"] * 3, "sliding_window": 6}, 31 - 3 * 3),
}


@pytest.mark.parametrize("name", STACKS)
def test_measured_equals_predicted(name):
    keys, first = STACKS[name]
    config = VariantsConfig(**{**BASE, **keys})
    torch.manual_seed(0)
    model = VariantsModel(config)
    assert predicted_reach(config, 32) == first
    field = receptive_field(model, 32, batch_size=7)
    assert field.predicted_first == field.measured_first == first and len(field.influence) == 32
    assert all(change > 1e-9 for change in field.influence[first:])
    assert model.dtype == torch.float32 and model.training  # the model itself is left alone


def test_wrong_lengths():
    config = VariantsConfig(**BASE)
    with pytest.raises(ValueError, match="length=0"):
        predicted_reach(config, 0)
    with pytest.raises(ValueError, match="length=1"):
        receptive_field(VariantsModel(config), 1)


def test_command_line(tmp_path, capsys):
    words = ["receptive-field", "quickstart", "hidden_size=32", "intermediate_size=48", "--length", "20", "--json"]
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "--plot", str(tmp_path / "field.png")])
    field = json.loads(capsys.readouterr().out)
    assert stop.value.code == 0 and field["measured_first"] == field["predicted_first"]
    assert (tmp_path / "field.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(SystemExit) as stop:
        cli.main(["receptive-field", "llama-3-8b"])
    assert stop.value.code == 2 and "hidden_size=64" in capsys.readouterr().err.replace("\n", " ")
