"""Overrides whose dots reach into the parts of a config, from Python and in the commands that read configs."""

import json

import pytest

from hf_variants import VariantsSeq2SeqConfig, cli
from hf_variants.convert import read_config

STACK = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**STACK, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}


@pytest.fixture
def pair():
    stacks = {"encoder": {**STACK, "is_causal": False}, "decoder": {**DECODER, "add_cross_attention": True}}
    return VariantsSeq2SeqConfig(**stacks, decoder_start_token_id=0)


@pytest.fixture
def file(pair, tmp_path):
    pair.save_pretrained(tmp_path)
    return str(tmp_path / "config.json")


def test_keys_of_parts_replace_single_keys(pair, file):
    changes = {"decoder.num_key_value_heads": 1, "decoder.rope_parameters.factor": 4.0}
    for source in (pair, file):
        read = read_config(source, **changes)
        assert read.decoder.num_key_value_heads == 1 and read.encoder.num_key_value_heads == 4
        assert read.decoder.rope_parameters == {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    assert pair.decoder.rope_parameters["factor"] == 2.0
    plain = read_config(pair.encoder, **{"rope_parameters.rope_theta": 5e5})
    assert plain.rope_parameters["rope_theta"] == 5e5 and pair.encoder.rope_parameters["rope_theta"] != 5e5


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("decoder.hidden_sizes", "hidden_size"),
        ("decodr.hidden_size", "decodr"),
        ("decoder.hidden_size.x", "hidden_size is 16"),
    ],
)
def test_keys_that_lead_nowhere_are_refused(pair, key, reason):
    with pytest.raises(ValueError, match=reason):
        read_config(pair, **{key: 8})


@pytest.mark.parametrize("command", ["describe", "count", "diff", "profile-cache"])
def test_commands_take_dotted_keys(command, file, capsys):
    def printed(*words):
        before = [file, file] if command == "diff" else [file]
        with pytest.raises(SystemExit) as left:
            cli.main([command, *before, *words, "--json"])
        assert left.value.code == 0
        return json.loads(capsys.readouterr().out)

    changed = ["num_key_value_heads=1", "rope_parameters.factor=4.0"]
    if command == "profile-cache":
        one, two = printed("--vary", ",".join(f"decoder.{word}" for word in changed))
        assert two["bytes"] < one["bytes"]
    else:
        assert printed() != printed(*(f"decoder.{word}" for word in changed))
