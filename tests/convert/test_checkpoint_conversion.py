"""Folders converted shard by shard: as conversion in memory gives them, both ways, with all that lies beside the weights."""

import json
import os
import re
import signal

import pytest
import torch
from native_cases import CASES, native_model, token_ids
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig

from hf_variants.convert import checkpoint_conversion as conversion
from hf_variants.convert import convert_checkpoint, from_native, proof, to_native, verify_checkpoint
from hf_variants.convert.proof import ProofError
from hf_variants.convert.skeletons import skeleton, streaming
from hf_variants.convert.stages import MemoryTensors, same_bits
from hf_variants.convert.weight_files import FolderTensors
from tests.convert.bits import assert_same_bits

FIRST_OF_FAMILY = dict(reversed(CASES))
# One per way in which disk, memory and our layout differ: alike, renamed, transposed and split, fused per head, experts fused
# by the library, experts alternated, a head that is the embedding, layers that give a list.
KINDS = ("llama", "olmo2", "gpt2", "bloom", "mixtral", "gpt_oss", "gemma2", "openai-gpt")
SMALL_SHARDS = 30_000


def _saved(family, folder, name=None, **save):
    native = native_model(family, name or FIRST_OF_FAMILY[family])
    native.save_pretrained(folder, **save)
    return native


def _files(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def _check_both_ways(family, tmp_path, name=None):
    native = _saved(family, tmp_path / "native", name, max_shard_size=SMALL_SHARDS)
    before = _files(tmp_path / "native")
    report = convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    from_native(native).save_pretrained(tmp_path / "expected")
    assert_same_bits(_files(tmp_path / "expected"), _files(tmp_path / "ours"))
    assert (tmp_path / "expected" / "config.json").read_text() == (tmp_path / "ours" / "config.json").read_text()
    assert report["proof"]["gradients"] is not None and len(report["proof"]["layers"]) == native.config.num_hidden_layers
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    assert_same_bits(before, _files(tmp_path / "back"))
    assert (tmp_path / "native" / "config.json").read_text() == (tmp_path / "back" / "config.json").read_text()


@pytest.mark.parametrize("family", KINDS)
def test_both_ways_equal_conversion_in_memory(family, tmp_path):
    _check_both_ways(family, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(set(FIRST_OF_FAMILY) - set(KINDS)))
def test_every_other_family_too(family, tmp_path):
    _check_both_ways(family, tmp_path)


# ---- what lies beside the weights ----
def test_everything_beside_the_weights_goes_along(tmp_path):
    source = tmp_path / "native"
    native = native_model("llama", "plain")
    native.generation_config = GenerationConfig(do_sample=True, temperature=0.3)
    native.save_pretrained(source)
    beside = {
        "tokenizer.json": "{}",
        "chat_template.jinja": "{{ messages }}",
        "tokenizer_config.json": "{}",
        "LICENSE": "free",
    }
    for name, text in beside.items():
        (source / name).write_text(text)
    (source / "README.md").write_text("---\nlicense: mit\n---\n# Words of the author\n")
    (source / "modeling_own.py").write_text("raise SystemExit")
    (source / "pytorch_model.bin").write_text("pickle")
    ours, back = tmp_path / "ours", tmp_path / "back"
    report = convert_checkpoint(source, ours)
    assert {*beside, "generation_config.json"} == set(report["kept"])
    assert report["left"] == ["modeling_own.py", "pytorch_model.bin"]
    assert not (ours / "modeling_own.py").exists()
    card = (ours / "README.md").read_text()
    assert "license: mit" in card and "# Words of the author" in card
    assert "## Architecture" in card and "## Conversion" in card and "bitwise equal" in card
    convert_checkpoint(ours, back)
    assert all((back / name).read_text() == text for name, text in beside.items())
    for file in (ours, back):
        assert (file / "generation_config.json").read_text() == (source / "generation_config.json").read_text()
    card = (back / "README.md").read_text()
    assert "license: mit" in card and "# Words of the author" in card and card.count("## Conversion") == 1
    assert "## Architecture" not in card and not list(back.glob("*.py"))
    assert AutoModelForCausalLM.from_pretrained(ours).generation_config.temperature == 0.3


def test_our_code_travels_with_the_folder(tmp_path):
    """The folder loads where the package is not installed; what it needs is all there."""
    from transformers.dynamic_module_utils import get_relative_import_files

    _saved("llama", tmp_path / "native")
    convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    entries = {
        value.split(".")[0] for value in json.loads((tmp_path / "ours" / "config.json").read_text())["auto_map"].values()
    }
    for entry in entries:
        found = get_relative_import_files(tmp_path / "ours" / f"{entry}.py")
        assert found and all(os.path.isfile(file) for file in found)


def test_shards_are_those_asked_for(tmp_path):
    _saved("llama", tmp_path / "native")
    convert_checkpoint(tmp_path / "native", tmp_path / "one")
    convert_checkpoint(tmp_path / "native", tmp_path / "many", max_shard_size="30KB")
    assert [file.name for file in (tmp_path / "one").glob("*.safetensors*")] == ["model.safetensors"]
    shards = sorted(file.name for file in (tmp_path / "many").glob("*.safetensors"))
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors" and len(shards) > 3
    assert max((tmp_path / "many" / name).stat().st_size for name in shards) < 34_000
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == shards
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in _files(tmp_path / "one").values())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "many")
    assert torch.equal(loaded.lm_head.weight, AutoModelForCausalLM.from_pretrained(tmp_path / "one").lm_head.weight)


def test_dtype_of_the_result(tmp_path):
    _saved("deepseek_v3", tmp_path / "native")
    report = convert_checkpoint(tmp_path / "native", tmp_path / "ours", dtype="bfloat16")
    assert report["dtype"] == "bfloat16"
    dtypes = {name: tensor.dtype for name, tensor in _files(tmp_path / "ours").items()}
    biases = {name for name in dtypes if "e_score_correction_bias" in name}
    assert {dtypes.pop(name) for name in biases} == {torch.float32}
    assert set(dtypes.values()) == {torch.bfloat16}
    expected = from_native(tmp_path / "native", dtype=torch.bfloat16).state_dict()
    assert all(same_bits(expected[name], tensor) for name, tensor in _files(tmp_path / "ours").items())


# ---- models in memory ----
def test_models_in_memory_both_ways(tmp_path):
    native = native_model("mixtral", "plain")
    before = {name: tensor.clone() for name, tensor in native.state_dict().items()}
    report = convert_checkpoint(native, tmp_path / "ours")
    assert report["source"] == {"kind": "memory", "name": "MixtralForCausalLM"}
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    convert_checkpoint(ours, tmp_path / "back", family="mixtral")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert all(same_bits(before[name], tensor) for name, tensor in back.state_dict().items())
    assert all(same_bits(before[name], tensor) for name, tensor in native.state_dict().items())
    assert verify_checkpoint(tmp_path / "ours", native)["proof"]["logits"]["difference"] <= 1e-5


def test_a_toggle_changed_after_building_is_refused(tmp_path):
    ours = from_native(native_model("llama", "plain"))
    ours.config.sliding_window = 4
    with pytest.raises(ValueError, match="sliding_window.*load it with the changed toggle, then convert it"):
        convert_checkpoint(ours, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_model_of_ours_goes_to_another_family(tmp_path):
    ours = from_native(native_model("llama", "plain"))
    report = convert_checkpoint(ours, tmp_path / "out", to="native", family="mistral")
    assert report["family"] == "mistral"
    ids = token_ids(2, 9)
    native = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(native).__name__ == "MistralForCausalLM"
    with torch.no_grad():
        assert (native(input_ids=ids).logits - ours(input_ids=ids).logits).abs().max().item() <= 1e-5


def test_a_hub_id_is_fetched_without_what_is_not_read(tmp_path, monkeypatch):
    import fnmatch

    import huggingface_hub

    _saved("llama", tmp_path / "repo", max_shard_size=SMALL_SHARDS)
    for name in ("consolidated.safetensors", "pytorch_model.bin", "tokenizer.json"):
        (tmp_path / "repo" / name).write_text("{}")
    calls = []

    def download(repo, revision, allow_patterns):
        calls.append((repo, revision))
        (tmp_path / "cache").mkdir(exist_ok=True)
        for path in (tmp_path / "repo").iterdir():
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in allow_patterns):
                (tmp_path / "cache" / path.name).write_bytes(path.read_bytes())
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    report = convert_checkpoint("me/llama", tmp_path / "ours", revision="dev")
    assert set(calls) == {("me/llama", "dev")}
    fetched = {path.name for path in (tmp_path / "cache").iterdir()}
    assert "tokenizer.json" in fetched and not {"consolidated.safetensors", "pytorch_model.bin"} & fetched
    assert report["source"] == {"kind": "hub", "name": "me/llama", "revision": "dev"}
    assert "base_model: me/llama" in (tmp_path / "ours" / "README.md").read_text()
    assert verify_checkpoint(tmp_path / "ours")["source"]["name"] == "me/llama" and set(calls) == {("me/llama", "dev")}


# ---- the proof ----
@pytest.mark.parametrize(
    "spoil", [lambda t: t * (1 + 1e-6), lambda t: t.roll(1, 0), lambda t: t * float("nan")], ids=["scaled", "rolled", "nan"]
)
def test_nothing_is_kept_where_a_written_weight_differs(spoil, tmp_path, monkeypatch):
    """Spoilt on the way to the file, as by a bad disk or a wrong rule."""
    _saved("llama", tmp_path / "native")
    write, name = conversion.write_shards, "model.layers.1.self_attn.q_proj.weight"

    def spoiling(tensors, folder, *rest):
        (file,) = write(tensors, folder, *rest)
        state = load_file(file)
        save_file({**state, name: spoil(state[name])}, file, metadata={"format": "pt"})

    monkeypatch.setattr(conversion, "write_shards", spoiling)
    with pytest.raises(ProofError, match=f"{name} is not bitwise equal"):
        convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["native"]


def test_nothing_is_kept_where_the_models_compute_otherwise(tmp_path, monkeypatch):
    """The weights agree and a toggle was read wrongly: only the forward pass can tell."""
    _saved("llama", tmp_path / "native")
    read = conversion.config_from_native

    def wrong(native):
        config = read(native)
        config.norm_eps *= 100
        return config

    monkeypatch.setattr(conversion, "config_from_native", wrong)
    with pytest.raises(ProofError, match="hidden states after layer 0 differ"):
        convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["native"]


def test_large_models_are_run_layer_by_layer(tmp_path, monkeypatch):
    _saved("gemma2", tmp_path / "native")
    full = convert_checkpoint(tmp_path / "native", tmp_path / "full")["proof"]
    monkeypatch.setattr(conversion, "_SPARE", -(10**9))
    short = convert_checkpoint(tmp_path / "native", tmp_path / "short")["proof"]
    assert short["tokens"] == (1, 8) and len(short["layers"]) == len(full["layers"])
    monkeypatch.setattr(proof, "_FEWEST_ROWS", proof._ROWS)
    monkeypatch.setattr(proof, "_FEWEST_TOKENS", proof._TOKENS)
    layered = convert_checkpoint(tmp_path / "native", tmp_path / "ours")["proof"]
    assert layered["gradients"] is None and "GiB" in layered["gradients_left_out"]
    assert layered["layers"] == full["layers"] and layered["logits"] == full["logits"]


@torch.no_grad()
def test_streaming_holds_one_layer_at_a_time():
    native = native_model("llama", "tied_biased")
    ids = token_ids(1, 8)
    empty = skeleton(type(native), native.config, torch.float32)
    held = []

    def count(module, arguments):
        held.append(sum(not p.is_meta for layer in empty.model.layers for p in layer.parameters()))

    for layer in empty.model.layers:
        layer.mlp.register_forward_pre_hook(count)
    with streaming(empty, MemoryTensors(native.state_dict())) as model:
        assert torch.equal(model(input_ids=ids).logits, native(input_ids=ids).logits)
    assert held == [len(list(native.model.layers[0].parameters()))] * 3
    assert all(parameter.is_meta for parameter in empty.parameters())


@torch.no_grad()
@pytest.mark.parametrize("family", list(FIRST_OF_FAMILY))
def test_every_native_class_runs_layer_by_layer(family):
    """Some ask their weights where they lie, or reach for them from outside of the layer."""
    native = native_model(family, FIRST_OF_FAMILY[family])
    ids = token_ids(1, 8)
    with streaming(skeleton(type(native), native.config, torch.float32), MemoryTensors(native.state_dict())) as model:
        assert torch.equal(model(input_ids=ids).logits, native(input_ids=ids).logits)


def test_verify_finds_its_source_and_a_changed_weight(tmp_path):
    _saved("llama", tmp_path / "native")
    convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "ours").iterdir()}
    assert verify_checkpoint(tmp_path / "ours")["proof"]["weights"] == 60
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "ours").iterdir()}
    recorded = json.loads((tmp_path / "ours" / "conversion_report.json").read_text())["source"]
    assert recorded == {"kind": "folder", "name": "native", "path": "../native"}
    (tmp_path / "native").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="is gone; give the source"):
        verify_checkpoint(tmp_path / "ours")
    assert verify_checkpoint(tmp_path / "ours", tmp_path / "moved")["source"]["name"] == "moved"
    with pytest.raises(ValueError, match="of one kind"):
        verify_checkpoint(tmp_path / "ours", tmp_path / "ours")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        model.model.norm.weight[3] += 1e-6
    model.save_pretrained(tmp_path / "ours")
    with pytest.raises(ProofError, match=r"model\.norm\.weight is not bitwise equal"):
        verify_checkpoint(tmp_path / "ours", tmp_path / "moved")


def test_verify_without_a_report(tmp_path):
    _saved("llama", tmp_path / "native")
    convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    (tmp_path / "ours" / "conversion_report.json").unlink()
    with pytest.raises(ValueError, match="holds no conversion_report.json; give the source"):
        verify_checkpoint(tmp_path / "ours")
    assert verify_checkpoint(tmp_path / "ours", tmp_path / "native")["proof"]["gradients"] is not None


@pytest.mark.parametrize(
    "keys",
    [
        {"attn_logit_softcapping": None},
        {"max_position_embeddings": 77},
        {"eos_token_id": 3},
        {"attention_dropout": 0.5},
        {"architectures": ["Other"]},
        {"native": {"model_type": "llama"}},
        {"dtype": "float64"},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_verify_reads_every_key_of_the_config(keys, tmp_path):
    """Most of them change nothing that one run on random weights shows."""
    _saved("gemma2", tmp_path / "native")
    convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    path = tmp_path / "ours" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    with pytest.raises(ProofError, match=f"the config differs from what converting the source gives: {next(iter(keys))} is"):
        verify_checkpoint(tmp_path / "ours")


def test_verify_reads_every_key_of_a_native_config(tmp_path):
    _saved("gemma2", tmp_path / "native")
    convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    path = tmp_path / "back" / "config.json"
    whole = json.loads(path.read_text())
    for key, value in {"attn_logit_softcapping": 49.0, "eos_token_id": 3, "unheard_of": 1}.items():
        path.write_text(json.dumps({**whole, key: value}))
        with pytest.raises(ProofError, match=f"the config differs .*: {key} is {value}"):
            verify_checkpoint(tmp_path / "back")


def test_verify_reads_the_files_that_went_along(tmp_path):
    _saved("llama", tmp_path / "native")
    names = ("tokenizer.json", "chat_template.jinja", "additional_chat_templates/tool.jinja")
    (tmp_path / "native" / "additional_chat_templates").mkdir()
    for name in names:
        (tmp_path / "native" / name).write_text("{}")
    convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    verify_checkpoint(tmp_path / "ours")
    for name in names:
        for change in (lambda file: file.write_text("[]"), lambda file: file.unlink()):
            change(tmp_path / "ours" / name)
            with pytest.raises(ProofError, match=rf"files that went along differ .*: \['{name}'\]"):
                verify_checkpoint(tmp_path / "ours")
        (tmp_path / "ours" / name).write_text("{}")


@pytest.mark.parametrize(
    "report", ["{", "[]", "{}", '{"source": 3}', '{"source": {"kind": "folder"}}', '{"source": {"kind": "hub"}}']
)
def test_verify_of_a_report_that_is_none(report, tmp_path):
    _saved("llama", tmp_path / "native")
    convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    (tmp_path / "ours" / "conversion_report.json").write_text(report)
    with pytest.raises(ValueError, match="cannot be read|is no report of a conversion|names no source that can be read again"):
        verify_checkpoint(tmp_path / "ours")
    with pytest.raises(ValueError, match="nowhere' is no folder"):
        verify_checkpoint(tmp_path / "nowhere", tmp_path / "native")


# ---- interruptions ----
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_conversions_leave_nothing(number, tmp_path):
    _saved("llama", tmp_path / "native")
    seen = []

    def progress(what, done, total):
        if what == "comparing weights" and not seen:
            seen.extend(sorted(path.name for path in tmp_path.iterdir()))
            os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGTERM)
    # a test run in the background of a shell inherits an ignored SIGINT
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            convert_checkpoint(tmp_path / "native", tmp_path / "ours", progress=progress)
    finally:
        signal.signal(signal.SIGINT, interrupts)
    assert re.fullmatch(r"\.ours\.partial-\w+ native", " ".join(seen))
    assert [path.name for path in tmp_path.iterdir()] == ["native"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_a_killed_run_left_is_named(tmp_path, caplog):
    _saved("llama", tmp_path / "native")
    (tmp_path / ".ours.partial-abc").mkdir()
    convert_checkpoint(tmp_path / "native", tmp_path / "ours")
    assert "Killed conversions left" in caplog.text and ".ours.partial-abc" in caplog.text


# ---- memory ----
def test_a_file_is_read_tensor_by_tensor(tmp_path):
    """What was taken is not held: neither by the stages nor by the reader."""
    import weakref

    _saved("mixtral", tmp_path)
    from hf_variants.convert.sides import folder_side

    side = folder_side(tmp_path)
    alive = []
    for name in side.weights:
        alive.append(weakref.ref(side.weights[name]))
        assert sum(ref() is not None for ref in alive) <= 1
    assert len(FolderTensors(tmp_path)) > len(side.weights)


def test_way_back_of_a_changed_toggle(tmp_path):
    """A variants folder that never was native goes to the first family that can express it."""
    from hf_variants import VariantsConfig, VariantsForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40}
    VariantsForCausalLM(VariantsConfig(**sizes, qk_norm="head")).save_pretrained(tmp_path / "ours")
    report = convert_checkpoint(tmp_path / "ours", tmp_path / "native")
    assert report["family"] == "qwen3" and report["to"] == "native"
    expected = to_native(AutoModelForCausalLM.from_pretrained(tmp_path / "ours"), family="qwen3").state_dict()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "native").state_dict()
    assert_same_bits(expected, found)
