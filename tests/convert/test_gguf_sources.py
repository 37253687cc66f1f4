"""GGUF files as sources: weights as transformers loads them, in every bit; what it would drop is read or refused."""

import numpy as np
import pytest
import torch
from gguf_cases import ARCHITECTURES, write_gguf
from transformers import AutoConfig, AutoModelForCausalLM

from hf_variants.convert import convert_checkpoint, from_native, to_native, verify_checkpoint
from hf_variants.convert.gguf_files import GgufFile, GgufTensors
from tests.convert.bits import assert_same_bits

FILE = "model.gguf"


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [*((name, torch.float32) for name in sorted(ARCHITECTURES)), ("llama", torch.bfloat16), ("qwen3moe", torch.bfloat16)],
)
def test_weights_are_those_that_transformers_loads(architecture, dtype, tmp_path):
    config = write_gguf(tmp_path / "source", architecture)
    report = convert_checkpoint(tmp_path / "source", tmp_path / "ours", gguf_file=FILE, dtype=dtype)
    assert report["source"]["gguf_file"] == FILE and report["dtype"] == str(dtype).removeprefix("torch.")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    # of the config that the file means: transformers leaves some of its keys to defaults
    native = AutoModelForCausalLM.from_pretrained(
        tmp_path / "source", gguf_file=FILE, dtype=dtype, config=GgufFile(tmp_path / "source", FILE).config
    )
    del native.config.quantization_config
    expected, found = from_native(native).state_dict(), ours.state_dict()
    assert_same_bits(expected, found)
    back = to_native(ours).config
    for key in ("rope_parameters", "head_dim", "sliding_window", "attn_logit_softcapping", "tie_word_embeddings"):
        assert getattr(back, key, None) == getattr(config, key, None), key
    straight = from_native(tmp_path / "source", gguf_file=FILE, dtype=dtype).state_dict()
    assert_same_bits(straight, found)


def test_a_converted_file_verifies(tmp_path):
    write_gguf(tmp_path / "source", "llama")
    report = convert_checkpoint(tmp_path / "source", tmp_path / "ours", gguf_file=FILE)
    # larger than the packed file, and yet one
    assert (tmp_path / "ours" / "model.safetensors").stat().st_size > (tmp_path / "source" / FILE).stat().st_size
    assert verify_checkpoint(tmp_path / "ours")["proof"]["weights"] == report["proof"]["weights"]


@pytest.mark.parametrize("name", [FILE, f"Q4/{FILE}"])
def test_a_file_of_a_repository_or_of_a_folder_in_it(name, tmp_path, monkeypatch):
    snapshot = tmp_path / "snapshot"
    (snapshot / name).parent.mkdir(parents=True)
    write_gguf((snapshot / name).parent, "llama")
    expected = from_native(snapshot, gguf_file=name).state_dict()
    monkeypatch.setattr("transformers.utils.cached_file", lambda repo, filename, **where: str(snapshot / filename))
    found = from_native("owner/name", gguf_file=name).state_dict()
    assert_same_bits(expected, found)
    assert convert_checkpoint(snapshot, tmp_path / "ours", gguf_file=name)["source"]["gguf_file"] == name
    verify_checkpoint(tmp_path / "ours")


def test_key_value_heads_left_out_are_as_many_as_heads(tmp_path):
    """The library's loader leaves queries and keys in the order of the file where the number is not said."""
    for name, without in (("said", ()), ("unsaid", ("attention.head_count_kv",))):
        write_gguf(tmp_path / name, "llama", num_key_value_heads=4, without=without)
    said, unsaid = (from_native(tmp_path / name, gguf_file=FILE).state_dict() for name in ("said", "unsaid"))
    assert_same_bits(said, unsaid)


def test_one_tensor_is_unpacked_at_a_time(tmp_path, monkeypatch):
    write_gguf(tmp_path / "source", "qwen3moe")
    read, whole = [], GgufFile.read
    monkeypatch.setattr(GgufFile, "read", lambda self, stored: read.append(stored.name) or whole(self, stored))
    file = GgufFile(tmp_path / "source", FILE)
    model = AutoModelForCausalLM.from_config(file.config)
    tensors = GgufTensors(file, model, torch.float32)
    assert not read
    name = "model.layers.1.mlp.experts.gate_up_proj"
    assert tensors[name].shape == tensors.meta[name].shape == model.state_dict()[name].shape
    assert sorted(read) == ["blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"]


# ---- what a model computes with and transformers drops ----
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 8},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
        ),
        ({"type": "none", "factor": 1.0}, {"rope_type": "default"}),
    ],
)
def test_scaling_of_rope(told, expected, tmp_path):
    write_gguf(tmp_path, "llama", told={f"rope.scaling.{key}": value for key, value in told.items()})
    assert AutoConfig.from_pretrained(tmp_path, gguf_file=FILE).rope_parameters["rope_type"] == "default"
    found = from_native(tmp_path, gguf_file=FILE).config.rope_parameters
    assert {key: found[key] for key in expected} == expected


def _llama3_factors(config):
    """As transformers scales them: default frequencies over scaled ones."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    plain = LlamaRotaryEmbedding(type(config).from_dict({**config.to_dict(), "rope_parameters": _DEFAULT})).inv_freq
    return (plain / LlamaRotaryEmbedding(config).inv_freq).numpy()


_DEFAULT = {"rope_type": "default", "rope_theta": 500000.0}
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_frequency_factors_of_llama_3(factor, tmp_path):
    rope = {**_LLAMA3, "factor": factor, "rope_theta": 500000.0}
    shape = {"head_dim": 64, "max_position_embeddings": 131072, "rope_parameters": rope}
    config = write_gguf(tmp_path, "llama", **shape)
    write_gguf(tmp_path, "llama", **shape, tensors={"rope_freqs.weight": _llama3_factors(config)})
    assert to_native(from_native(tmp_path, gguf_file=FILE)).config.rope_parameters == rope


@pytest.mark.parametrize(
    ("told", "tensors", "match"),
    [
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, {}, "rope.scaling.type.*by which the model computes"),
        ({"rope.scaling.type": "yarn", "rope.scaling.attn_factor": 2.0}, {}, "rope.scaling.attn_factor"),
        ({"rope.scaling.factor": 2.0}, {}, "rope.scaling.factor"),
        ({"attention.scale": 0.5}, {}, "attention.scale"),
        ({"attention.sliding_window": 8}, {}, "attention.sliding_window"),
        ({"attention.causal": False}, {}, "attention.causal"),
        ({"attention.temperature_scale": 0.1}, {}, "attention.temperature_scale"),
        ({"rope.freq_base_swa": 5000.0}, {}, "rope.freq_base_swa"),
        ({"a_key_of_tomorrow": 2}, {}, "a_key_of_tomorrow"),
        ({}, {"rope_freqs.weight": np.full(8, 3.0, np.float32)}, "rope_freqs.weight .* no published scaling"),
        ({}, {"rope_factors_long.weight": np.ones(8, np.float32)}, "1 tensors that have no place .*rope_factors_long.weight"),
        ({}, {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}, "1 tensors that have no place .*attn_sinks"),
    ],
)
def test_what_nothing_reads_is_refused(told, tensors, match, tmp_path):
    write_gguf(tmp_path / "source", "llama", told=told, tensors=tensors)
    with pytest.raises(ValueError, match="(?s)" + match):
        convert_checkpoint(tmp_path / "source", tmp_path / "out", gguf_file=FILE)
    with pytest.raises(ValueError, match="(?s)" + match):
        from_native(tmp_path / "source", gguf_file=FILE)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("architecture", "told", "expected"),
    [
        ("starcoder2", {"rope.freq_base": 1e6}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
        ("stablelm", {"rope.freq_base": 5e4}, {"rope_theta": 5e4}),
        ("nemotron", {"attention.layer_norm_epsilon": 0.25}, {"norm_eps": 0.25}),
        ("qwen3moe", {"expert_weights_norm": False, "expert_weights_scale": 1.0}, {"norm_topk_prob": False}),
        ("llama", {"attention.sliding_window": 0, "expert_count": 0, "attention.causal": True}, {}),
        (
            "gemma3",
            {"attention.sliding_window_pattern": 2, "rope.freq_base_swa": 5e3, "rope.freq_base": 2e6},
            {
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
                    "full_attention": {"rope_type": "default", "rope_theta": 2e6},
                },
            },
        ),
        (
            "gemma3",
            {"attention.sliding_window_pattern": [True, False], "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
            {
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                },
            },
        ),
    ],
)
def test_what_the_library_leaves_to_defaults_is_read(architecture, told, expected, tmp_path):
    write_gguf(tmp_path, architecture, told=told)
    config = GgufFile(tmp_path, FILE).config
    found = {**config.to_dict(), "rope_theta": config.rope_parameters.get("rope_theta")}
    assert {key: found[key] for key in expected} == expected
    from_native(tmp_path, gguf_file=FILE)


def test_one_of_several_parts_is_refused(tmp_path):
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / FILE, "llama")
    writer.add_uint16("split.count", 3)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    with pytest.raises(ValueError, match="is one of 3 parts of a model; merge them"):
        convert_checkpoint(tmp_path, tmp_path / "out", gguf_file=FILE)


def test_an_encoder_decoder_is_refused(tmp_path):
    """Its activation would be a guess: the file of a gated GELU reads as a gated ReLU."""
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / FILE, "t5")
    for key in ("embedding_length", "block_count", "attention.head_count", "attention.key_length", "feed_forward_length"):
        writer.add_uint32(f"t5.{key}", 4)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    with pytest.raises(ValueError, match="encoder-decoder .t5.*from its safetensors"):
        convert_checkpoint(tmp_path, tmp_path / "out", gguf_file=FILE)


# ---- damage ----
@pytest.mark.parametrize("kept", [0, 3, 40, 600, -200])
def test_damaged_file(kept, tmp_path):
    write_gguf(tmp_path / "source", "llama")
    whole = (tmp_path / "source" / FILE).read_bytes()
    (tmp_path / "source" / FILE).write_bytes(whole[:kept])
    with pytest.raises(ValueError, match="GGUF file .* is truncated or damaged"):
        convert_checkpoint(tmp_path / "source", tmp_path / "out", gguf_file=FILE)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("keywords", "match"),
    [
        ({"gguf_file": "y.gguf"}, r"'y.gguf' is not in .*\['model.gguf'\]"),
        ({"gguf_file": FILE, "dequantize": True}, "a GGUF file is unpacked in any case"),
    ],
)
def test_arguments(keywords, match, tmp_path):
    write_gguf(tmp_path, "llama")
    with pytest.raises(ValueError, match=match):
        convert_checkpoint(tmp_path, tmp_path / "out", **keywords)
    with pytest.raises(ValueError, match="dtype='floot32' is unknown"):
        from_native(tmp_path, gguf_file=FILE, dtype="floot32")
    with pytest.raises(ValueError, match=r"'model.gguf' is not in .*part"):
        from_native(tmp_path, gguf_file=FILE, subfolder="part")
    with pytest.raises(ValueError, match=r"\['device_map'\] cannot be given with gguf_file"):
        from_native(tmp_path, gguf_file=FILE, device_map="cpu")


def test_a_file_that_is_not_named_as_one_is_told_how(tmp_path):
    write_gguf(tmp_path, "llama")
    with pytest.raises(ValueError, match=r"of its GGUF files \['model.gguf'\], name one by gguf_file"):
        convert_checkpoint(tmp_path, tmp_path / "out")
    for read in (from_native, lambda path: convert_checkpoint(path, tmp_path / "out")):
        with pytest.raises(ValueError, match=r"is a GGUF file; give its folder .* and gguf_file='model.gguf'"):
            read(tmp_path / FILE)


def test_architecture_that_is_no_family(tmp_path):
    """The tensors are never looked at."""
    from gguf import GGUFWriter

    for architecture, match in (("mamba", "'mamba' cannot be converted"), ("none_such", "holds no config .*none_such")):
        writer = GGUFWriter(tmp_path / f"{architecture}.gguf", architecture)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(ValueError, match=match):
            convert_checkpoint(tmp_path, tmp_path / "out", gguf_file=f"{architecture}.gguf")
