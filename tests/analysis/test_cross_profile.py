"""The cost of a generated token against the length of the encoder: counted, a straight line, and what a model really holds."""

import json

import pytest
import torch

from hf_variants import VariantsSeq2SeqConfig, cli
from hf_variants.evaluation.cross_profile import count_cross, measure_cross, straight_line

STACK = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
MLA = {
    "attention_type": "mla",
    "head_dim": None,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
}
DECODERS = {
    "mha": {},
    "mqa": {"num_key_value_heads": 1},
    "mla": MLA,
    "window": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
}


def config_of(**decoder):
    return VariantsSeq2SeqConfig(encoder=STACK, decoder={**STACK, **decoder}, decoder_start_token_id=0)


def test_counts_by_hand():
    profile = count_cross("mha", config_of(), [10, 20, 40], length=5)
    # two layers; a score and a weighted sum are 2 multiply-adds of 8 numbers in each of 4 heads
    assert profile.flops_per_state == 2 * (2 * 2 * 8 * 4) and profile.bytes_per_state == 2 * (2 * 4 * 8) * 4
    assert [point["cross_bytes"] for point in profile.points] == [states * 2 * 64 * 4 for states in (10, 20, 40)]
    assert {point["self_bytes"] for point in profile.points} == {5 * 2 * 64 * 4}
    shared = count_cross("mqa", config_of(num_key_value_heads=1), [10, 20], length=5, batch_size=3, dtype=torch.bfloat16)
    assert shared.bytes_per_state == 3 * 2 * (2 * 8) * 2 and shared.flops_per_state == profile.flops_per_state


@pytest.mark.parametrize("name", DECODERS)
def test_counted_is_a_line_and_what_a_model_holds(name):
    config = config_of(**DECODERS[name])
    profile = count_cross(name, config, [8, 16, 48, 128], length=9, batch_size=2)
    first = profile.points[0]
    for point in profile.points:
        more = point["states"] - first["states"]
        assert point["flops"] == first["flops"] + more * profile.flops_per_state
        assert point["cross_bytes"] == point["states"] * profile.bytes_per_state
    measure_cross(profile, config, new_tokens=2, repeats=1)
    assert [point["measured_cross_bytes"] for point in profile.points] == [point["cross_bytes"] for point in profile.points]
    assert all(point["seconds"] > 0 and point["encoder_seconds"] > 0 for point in profile.points)


def test_the_line_is_that_of_the_measured_seconds():
    config = config_of()
    profile = count_cross("long", config, [8, 16, 32], length=4, batch_size=2)
    measure_cross(profile, config, new_tokens=2, repeats=1)
    states, seconds = ([point[key] for point in profile.points] for key in ("states", "seconds"))
    assert (profile.seconds_per_state, profile.linearity) == straight_line(states, seconds)


def test_a_line_through_points():
    slope, fit = straight_line([1, 2, 4], [5.0, 7.0, 11.0])
    assert slope == pytest.approx(2) and fit == pytest.approx(1)
    assert straight_line([1, 2, 3], [1.0, 3.0, 1.0])[1] < 0.1


@pytest.fixture
def file(tmp_path):
    config_of().save_pretrained(tmp_path)
    return str(tmp_path / "config.json")


def test_command_prints_what_python_counts_and_draws(file, tmp_path, capsys):
    words = ["profile-cross", file, "--vary", "decoder.num_key_value_heads=1", "--encoder-lengths", "8,16"]
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "--json", "--plot", str(tmp_path / "cross.png")])
    assert stop.value.code == 0
    plain, varied = json.loads(capsys.readouterr().out)
    assert plain["points"] == count_cross("x", config_of(), [8, 16]).points
    assert varied["bytes_per_state"] * 4 == plain["bytes_per_state"]
    assert (tmp_path / "cross.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        cli.main(["profile-cross", file, "--encoder-lengths", "8,16", "--measure", "--new-tokens", "2"])
    assert "each token of the encoder adds 256 FLOPs and 512 bytes, and" in " ".join(capsys.readouterr().out.split())


BAD = {
    "no numbers": (["--encoder-lengths", "8;16"], "must be whole numbers apart by commas"),
    "one length": (["--encoder-lengths", "8"], "must be at least two, rising"),
    "falling": (["--encoder-lengths", "16,8"], "must be at least two, rising"),
    "too long": (["--encoder-lengths", "8,256"], "an encoder length of 256 exceeds encoder.max_position_embeddings=128"),
    "nothing written": (["--length", "0"], "length=0 and batch_size=1 must be at least 1"),
    "steps unmeasured": (["--new-tokens", "4"], "--new-tokens 4 is timed by --measure alone"),
    "no dtype": (["--dtype", "int8"], "is no floating-point dtype of torch"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes(file, name, capsys):
    words, message = BAD[name]
    words = words if "--encoder-lengths" in words else [*words, "--encoder-lengths", "8,16"]
    with pytest.raises(SystemExit) as stop:
        cli.main(["profile-cross", file, *words])
    assert stop.value.code == 2 and message in " ".join(capsys.readouterr().err.split())


def test_one_stack_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["profile-cross", "tiny/mla", "--encoder-lengths", "8,16"])
    assert "tiny/mla is no encoder-decoder" in capsys.readouterr().err
