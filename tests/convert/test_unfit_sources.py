"""Checkpoints that cannot be converted: each an error that names what is wrong and what to do, and nothing half-written."""

import errno
import json
import os
import resource
import shutil

import pytest
import torch
from native_cases import CASES, native_model
from safetensors.torch import load_file, save_file

from hf_variants.convert import checkpoint_conversion as conversion
from hf_variants.convert import convert_checkpoint, from_native, new_folder, verify_checkpoint, weight_files

FIRST = dict(reversed(CASES))


@pytest.fixture
def source(tmp_path):
    native_model("llama", "plain").save_pretrained(tmp_path / "native")
    return tmp_path / "native"


def _refused(source, match, **keywords):
    """The conversion fails with a ValueError that says `match`, and leaves the folder as it was."""
    parent = source.parent
    before = sorted(path.name for path in parent.iterdir())
    with pytest.raises(ValueError, match="(?s)" + match):
        convert_checkpoint(source, parent / "out", **keywords)
    assert sorted(path.name for path in parent.iterdir()) == before


def _edit_config(folder, **keys):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **keys}))


def _edit_weights(folder, change):
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


# ---- what it is ----
def test_unknown_model_type(source):
    _edit_config(source, model_type="lama")
    _refused(source, r"model_type='lama' cannot be converted \(nearest known: llama")


def test_model_type_that_is_left_out_says_why(source):
    _edit_config(source, model_type="bamba")
    _refused(source, "'bamba' cannot be converted: no toggle means state-space layers")


def test_no_model_type_and_no_json(source):
    (source / "config.json").write_text("{}")
    _refused(source, "names no model_type")
    (source / "config.json").write_text("{")
    _refused(source, "is not valid JSON")
    (source / "config.json").unlink()
    _refused(source, "no config.json in")


def test_neither_folder_nor_repository(tmp_path):
    _refused(tmp_path / "nowhere", "is no folder, and no repository of that name could be fetched")


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes", "fp8", "mxfp4"])
def test_quantized_source(source, method):
    _edit_config(source, quantization_config={"quant_method": method, "bits": 4, "group_size": 128})
    _refused(source, f"quantized weights .*{method}.*ask for dequantize")


def test_dequantize_of_what_is_not_quantized(source):
    _refused(source, "holds no quantized weights; leave dequantize out", dequantize=True)


def test_native_setting_that_ours_cannot_mean(tmp_path):
    native_model("gemma2", "window").save_pretrained(tmp_path / "native")
    _edit_config(tmp_path / "native", use_bidirectional_attention=True)
    _refused(tmp_path / "native", "use_bidirectional_attention=True cannot be converted")


# ---- the weights ----
def test_pickled_weights(source):
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    _refused(source, r"only \['pytorch_model.bin'\]: pickled weights are not read")
    (source / "pytorch_model.bin").unlink()
    _refused(source, "no model.safetensors and no model.safetensors.index.json")


def test_adapter_and_gguf_are_pointed_the_way(source):
    (source / "model.safetensors").rename(source / "x.gguf")
    _refused(source, r"give its name as gguf_file, from \['x.gguf'\]")
    _refused(source, r"gguf_file='y.gguf' is not in .*x.gguf", gguf_file="y.gguf")
    (source / "x.gguf").unlink()
    (source / "adapter_config.json").write_text("{}")
    _refused(source, "merge_and_unload")


@pytest.mark.parametrize("kept", [0, 5, 4000, -1])
def test_truncated_file(source, kept):
    whole = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(whole[:kept])
    _refused(source, "model.safetensors is truncated or damaged")


def _sharded(folder):
    shutil.rmtree(folder)
    native_model("llama", "plain").save_pretrained(folder, max_shard_size=40_000)
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 2
    return shards


def test_missing_and_truncated_shards(source):
    shards = _sharded(source)
    held = shards[1].read_bytes()
    shards[1].write_bytes(held[:1000])
    _refused(source, f"{shards[1].name} is truncated")
    shards[1].unlink()
    _refused(source, f"1 of the {len(shards)} shards .* are missing .*{shards[1].name}")


def test_index_that_does_not_fit_the_shards(source):
    shards = _sharded(source)
    index = source / "model.safetensors.index.json"
    whole = index.read_text()
    content = json.loads(whole)
    content["weight_map"]["model.layers.9.mlp.up_proj.weight"] = shards[0].name
    index.write_text(json.dumps(content))
    _refused(source, r"names 1 tensors that no file holds: \['model.layers.9.mlp.up_proj.weight'\]")
    for broken in (whole[:100], "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'):
        index.write_text(broken)
        _refused(source, "index.json cannot be read")
    for elsewhere in (3, f"../native/{shards[0].name}", str(shards[0])):
        index.write_text(json.dumps({"weight_map": {**json.loads(whole)["weight_map"], "lm_head.weight": elsewhere}}))
        _refused(source, "index.json names what is no file beside it")
    index.unlink()
    _refused(source, "no model.safetensors and no model.safetensors.index.json .*fetch the file that lacks$")
    index.write_text(whole)
    name, tensor = next(iter(load_file(shards[0]).items()))
    save_file({**load_file(shards[1]), name: tensor}, shards[1], metadata={"format": "pt"})
    _refused(source, f"tensor {name} stands in two files")


def test_missing_tensor(source):
    _edit_weights(source, lambda state: state.pop("model.layers.1.self_attn.k_proj.weight"))
    _refused(source, r"1 missing: model\.layers\.1\.self_attn\.k_proj\.weight")


def test_extra_tensors(source):
    _edit_weights(source, lambda state: state.update({"model.layers.1.self_attn.q_norm.weight": torch.ones(8)}))
    _refused(source, r"1 tensors that have no place in LlamaForCausalLM .*\['model.layers.1.self_attn.q_norm.weight'\]")


def test_shape_mismatch(source):
    _edit_weights(source, lambda state: state.update({"model.norm.weight": torch.ones(7)}))
    _refused(source, r"model.norm.weight has shape \(7,\) instead of \(48,\)")


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"num_hidden_layers": 2}, "tensors that have no place .*layers beyond num_hidden_layers=2 of config.json"),
        ({"num_hidden_layers": 4}, r"missing: model\.layers\.3\."),
        ({"hidden_size": 96}, r"has shape \(\d+, 48\) instead of \(\d+, 96\)"),
        ({"num_key_value_heads": 6}, r"k_proj.weight has shape \(16, 48\) instead of \(48, 48\)"),
        ({"vocab_size": 65}, r"has shape \(64, 48\) instead of \(65, 48\)"),
        ({"attention_bias": True}, r"missing: model\.layers\.0\.self_attn\.k_proj\.bias"),
        ({"model_type": "qwen3"}, r"missing: model\.layers\.0\.self_attn\.k_norm\.weight"),
        ({"num_attention_heads": 5}, r"cannot be read: .*hidden size \(48\) is not a multiple of .*\(5\)"),
        ({"hidden_act": "no_such"}, "hidden_act='no_such' is unknown; choose from .*silu"),
        (
            {"rope_parameters": {"rope_type": "no_such", "rope_theta": 1e4}},
            "rope_type='no_such' is unknown; choose from .*yarn",
        ),
    ],
)
def test_config_that_contradicts_the_weights(source, keys, match):
    _edit_config(source, **keys)
    _refused(source, match)


def test_a_layer_cut_off_by_the_config_is_no_prediction_layer(tmp_path):
    """DeepSeek-V3 files hold a prediction layer after the stack, which is left; an ordinary layer there is an error."""
    native = native_model("deepseek_v3", "groups")
    native.save_pretrained(tmp_path / "native")
    _edit_weights(tmp_path / "native", lambda state: state.update({"model.layers.3.eh_proj.weight": torch.ones(2)}))
    report = convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    assert report["left"] == ["model.layers.3.eh_proj.weight"]
    shutil.rmtree(tmp_path / "ours")
    _edit_config(tmp_path / "native", num_hidden_layers=2)
    _refused(tmp_path / "native", "layers beyond num_hidden_layers=2")
    with pytest.raises(ValueError, match=r"left over: .*model\.layers\.2\."):
        from_native(tmp_path / "native")


def test_tied_and_untied_disagree(source):
    _edit_config(source, tie_word_embeddings=True)
    _refused(source, "tie_word_embeddings=True in the config .*lm_head.weight and model.embed_tokens.weight hold different")
    _edit_config(source, tie_word_embeddings=False)
    _edit_weights(source, lambda state: state.pop("lm_head.weight"))
    _refused(source, "tie_word_embeddings=False in the config .* hold no lm_head.weight")


def test_a_tied_head_that_is_stored_too_is_dropped(tmp_path):
    native_model("llama", "tied_biased").save_pretrained(tmp_path / "native")

    def repeat(state):
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()

    _edit_weights(tmp_path / "native", repeat)
    convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    assert "lm_head.weight" not in load_file(tmp_path / "ours" / "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("which", ["one", "all", "one of several that are fused"])
def test_codes_without_a_quantization_config(dtype, which, source, tmp_path):
    name = "model.layers.1.mlp.up_proj.weight"
    if which == "one of several that are fused":
        shutil.rmtree(source)
        native_model("mixtral", FIRST["mixtral"]).save_pretrained(source)
        name = next(key for key in load_file(source / "model.safetensors") if ".experts.1." in key)
    _edit_config(source, dtype=None if which == "all" else "float32")
    _edit_weights(source, lambda s: s.update({key: s[key].to(dtype) for key in list(s) if which == "all" or key == name}))
    _refused(source, rf"weights stored as {_word(dtype)}: .*no quantization_config that says what they mean")


@pytest.mark.parametrize(
    ("told", "stored", "exact"),
    [
        (torch.bfloat16, torch.float32, "float32"),
        (torch.float16, torch.float32, "float32"),
        (torch.float16, torch.bfloat16, "float32"),
        (torch.bfloat16, torch.float16, "float32"),
        (torch.float32, torch.float64, "float64"),
    ],
)
def test_dtype_in_the_config_that_would_round_the_weights(told, stored, exact, source, tmp_path):
    _edit_config(source, dtype=_word(told))
    _edit_weights(source, lambda state: state.update({key: value.to(stored) for key, value in state.items()}))
    _refused(
        source, f"dtype='{_word(told)}', which the config .* stored as {_word(stored)}: .*dtype='{exact}' to keep every bit"
    )
    report = convert_checkpoint(source, tmp_path / "rounded", dtype=told)
    assert report["dtype"] == _word(told) == verify_checkpoint(tmp_path / "rounded")["dtype"]
    convert_checkpoint(source, tmp_path / "kept", dtype=exact, max_shard_size="1MB")
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "kept" / "model.safetensors")
    assert all(torch.equal(before[key].double(), after[key].double()) for key in before)


def test_one_weight_that_the_dtype_in_the_config_would_round(source):
    name = "model.norm.weight"
    _edit_config(source, dtype="bfloat16")
    _edit_weights(source, lambda s: s.update({key: s[key].bfloat16() for key in list(s) if key != name}))
    _refused(source, rf"cannot hold 1 tensors that are stored as float32: \['{name}'\]")


def _word(dtype):
    return str(dtype).removeprefix("torch.")


# ---- the target ----
@pytest.mark.parametrize("points", ["to an empty folder", "nowhere"])
def test_target_is_a_link(points, source, tmp_path):
    if points == "to an empty folder":
        (tmp_path / "there").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "there")
    _refused(source, "out' is a link; name the folder to write itself, '.*there'")


def test_target_is_not_empty(source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    _refused(source, "is not empty; name another folder")
    assert (tmp_path / "out" / "mine.txt").read_text() == "precious"
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").write_text("a file")
    _refused(source, "is a file; name a folder")


def test_an_empty_target_is_taken(source, tmp_path):
    (tmp_path / "out").mkdir()
    convert_checkpoint(source, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").is_file()


def test_full_disk_is_foreseen(source, monkeypatch):
    usage = shutil._ntuple_diskusage(10**6, 10**6 - 10, 10)
    monkeypatch.setattr(new_folder.shutil, "disk_usage", lambda path: usage)
    _refused(source, r"needs 0\.00 GB and its disk has 0\.00 GB free")


@pytest.mark.parametrize("failure", ["on the first write", "within a file"])
def test_full_disk_while_writing(source, failure, monkeypatch):
    if failure == "on the first write":

        def full(*rest, **more):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(weight_files, "_layout", full)
        _refused(source, "writing .*out' failed: .*No space left on device; nothing was left there")
        return
    # the kernel refuses to let any file grow beyond the limit, as a full disk does
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        _refused(source, "writing .*out' failed: .*nothing was left there")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_target_that_cannot_be_made(source, tmp_path):
    (tmp_path / "blocked").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        convert_checkpoint(source, tmp_path / "blocked" / "out")


def test_what_is_written_is_read_again(source, monkeypatch):
    """A config that does not come back as it was meant is a failure of the conversion, not of whoever loads it."""

    def forgetful(target, folder):
        config = conversion._config_to_save(target)
        config.attention_multiplier = 0.5
        config.save_pretrained(folder)

    monkeypatch.setattr(conversion, "_write_config", forgetful)
    _refused(source, r"reads back with other values of \['attention_multiplier'\]")


# ---- arguments ----
@pytest.mark.parametrize(
    ("keywords", "match"),
    [
        ({"to": "onnx"}, r"to='onnx' is unknown; choose from \['variants', 'native'\]"),
        ({"to": "native"}, "to='native', but native is of that kind already"),
        ({"family": "llama"}, "family='llama' names a native type to write, but native is native"),
        ({"family": "lama"}, "model_type='lama' cannot be converted .*nearest known"),
        ({"family": "llama", "to": "variants"}, "leave one out"),
        ({"dtype": "int8"}, "dtype='int8' is unknown; choose from float32"),
        ({"dtype": "float8_e4m3fn"}, "is unknown; choose from"),
        ({"max_shard_size": "large"}, "max_shard_size='large' is no size"),
        ({"max_shard_size": 0}, "max_shard_size=0 must be positive"),
        ({"revision": "main"}, "revision='main' is for a Hub id"),
        ({"tokenizer": object()}, "goes along by itself"),
    ],
)
def test_arguments(source, keywords, match):
    _refused(source, match, **keywords)


def test_arguments_for_a_model_in_memory(tmp_path):
    with pytest.raises(ValueError, match=r"\['gguf_file', 'revision'\] say how to load"):
        convert_checkpoint(native_model("llama", "plain"), tmp_path / "out", gguf_file="x", revision="y")
    with pytest.raises(ValueError, match="LlamaModel cannot be converted: LlamaForCausalLM is needed"):
        convert_checkpoint(native_model("llama", "plain").model, tmp_path / "out")
    assert not list(tmp_path.iterdir())
