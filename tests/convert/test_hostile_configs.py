"""Configs and folders that transformers answers with an AttributeError or a text of several lines: here a ValueError
of one line, from `convert` and from `from_native` alike, and nothing written.
"""

import json

import pytest
import torch
from native_cases import native_model, token_ids
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, T5Config, T5ForConditionalGeneration

from hf_variants.convert import convert_checkpoint, from_native, verify_checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    native_model("llama", "plain", num_hidden_layers=1).save_pretrained(folder)
    return folder


@pytest.fixture
def source(saved, tmp_path):
    folder = tmp_path / "native"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((saved / name).read_bytes())
    return folder


def _edit(folder, **keys):
    config = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in {**config, **keys}.items() if value is not KeyError}
    (folder / "config.json").write_text(json.dumps(kept))


def _edit_weights(folder, change):
    state = load_file(folder / "model.safetensors")
    changed = change(state)
    save_file(state if changed is None else changed, folder / "model.safetensors", metadata={"format": "pt"})


def _refused(folder, match, load=True):
    """Both ways in say `match` on one line; the source and its parent are as before."""
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    calls = [lambda: convert_checkpoint(folder, folder.parent / "out"), lambda: from_native(folder)]
    for call in calls[: 2 if load else 1]:
        with pytest.raises(ValueError, match=match) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


# ---- config.json ----
@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is not valid JSON"),
        ("null", "holds a NoneType; it must hold config keys"),
        ("[]", "holds a list"),
        ('{"model_type": "llama",}', "is not valid JSON"),
        ("\ufeff{}", "is not valid JSON: Unexpected UTF-8 BOM"),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "is not valid JSON: maximum recursion"),
        ("{}", "names no model_type"),
        ('{"model_type": ["llama"]}', r"model_type=\['llama'\] must be one word"),
        ('{"model_type": "LLAMA"}', r"model_type='LLAMA' cannot be converted \(nearest known: llama"),
    ],
)
def test_what_is_no_config(text, match, source):
    (source / "config.json").write_text(text, encoding="utf-8")
    _refused(source, match)


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"dtype": "auto"}, "dtype='auto' is no dtype of weights; choose from .*bfloat16"),
        ({"dtype": KeyError, "torch_dtype": "torch.float32"}, "torch_dtype='torch.float32' is no dtype"),
        ({"dtype": "float8_e4m3fn"}, "dtype='float8_e4m3fn' is no dtype of weights"),
        ({"dtype": 32}, "dtype=32 is no dtype"),
        ({"quantization_config": "awq"}, "quantization_config='awq' must be a dict"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized weights .*gptq"),
        ({"hidden_size": "48"}, "Field 'hidden_size' expected int, got str .*'48'"),
        ({"num_attention_heads": 0}, "cannot be read: integer modulo by zero"),
        ({"num_key_value_heads": 0}, "num_key_value_heads=0 must be greater than zero"),
        ({"hidden_act": "swishy"}, "hidden_act='swishy' is unknown .did you mean 'swish'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "cannot be read: .*Missing required keys .*factor"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "1e4"}}, "rope_theta='1e4' must be a number"),
        ({"vocab_size": 10**400}, "llama config|that LlamaForCausalLM can be built from"),
        ({"architectures": ["LlamaForSequenceClassification"]}, None),
    ],
)
def test_keys_that_mean_nothing(keys, match, source):
    _edit(source, **keys)
    if match is None:
        match = "config.json names LlamaForSequenceClassification, of which LlamaForCausalLM is what converts"
        _edit_weights(source, lambda state: state.update({"score.weight": torch.ones(2, 48)}))
    _refused(source, match)


def test_a_damaged_config_of_the_family_is_not_called_unknown(source):
    _edit(source, model_type="variants")
    with pytest.raises(ValueError, match="variants model already; load it with AutoModelForCausalLM"):
        from_native(source)


@pytest.mark.slow
@pytest.mark.parametrize("flag", [{"return_dict": False}, {"output_attentions": True, "output_hidden_states": True}])
def test_what_a_config_asks_to_be_returned_is_no_reason(flag, source, tmp_path):
    _edit(source, **flag)
    assert convert_checkpoint(source, tmp_path / "out")["proof"]["logits"]["difference"] <= 1e-5


@pytest.mark.slow
def test_a_negative_pad_freezes_a_row_natively(source, tmp_path):
    """LLaMA 1 has pad_token_id=-1, which is no token: padding_idx counts it from the end."""
    _edit(source, pad_token_id=-1)
    report = convert_checkpoint(source, tmp_path / "out")
    assert report["untrained"] == ["pad_token_id=-1: natively it freezes row 63 of the embedding"]
    native, ours = (AutoModelForCausalLM.from_pretrained(folder) for folder in (source, tmp_path / "out"))
    ids = torch.tensor([[5, 63, 7]])
    for model in (native, ours):
        model(input_ids=ids, labels=ids).loss.backward()
    rows = [model.get_input_embeddings().weight.grad[[5, 63]].abs().amax(1) > 0 for model in (native, ours)]
    assert rows[0].tolist() == [True, False] and rows[1].tolist() == [True, True]
    convert_checkpoint(tmp_path / "out", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["pad_token_id"] == -1


# ---- weights ----
def test_an_adapter_in_the_folder(source):
    """transformers would load it on top of the model that is converted without it."""
    (source / "adapter_config.json").write_text("{}")
    _refused(source, r"holds an adapter .*merge_and_unload\(\).*move adapter_config.json and its weights away")
    (source / "config.json").unlink()
    _refused(source, r"holds an adapter .*merge_and_unload\(\), save the result and convert that$")


@pytest.mark.parametrize(
    ("prefix", "wrapper"),
    [
        ("_orig_mod.", r"torch.compile \(save model._orig_mod\)"),
        ("module.", r"DistributedDataParallel .*\(save model.module\)"),
        ("base_model.model.", "PEFT"),
    ],
)
def test_names_of_a_wrapper(prefix, wrapper, source):
    _edit_weights(source, lambda state: {f"{prefix}{name}": tensor for name, tensor in state.items()})
    _refused(source, f"names with '{prefix}' were saved from a model wrapped by {wrapper}")


def test_pickled_and_missing_weights(source):
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    _refused(source, "pickled weights are not read; save the model as safetensors first")
    (source / "pytorch_model.bin").unlink()
    _refused(source, "no model.safetensors and no model.safetensors.index.json")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_codes_without_a_config_that_explains_them(dtype, source):
    name = "model.layers.0.mlp.up_proj.weight"
    _edit_weights(source, lambda state: state.update({name: state[name].to(dtype)}))
    _refused(source, f"1 weights stored as {str(dtype)[6:]}: .*no quantization_config")


@pytest.mark.slow
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(value, source):
    def spoil(state):
        state["model.layers.0.mlp.up_proj.weight"][3, 5] = value

    _edit_weights(source, spoil)
    _refused(source, r"1 weights hold NaN or infinite values, .*\['model.layers.0.mlp.up_proj.weight'\]", load=False)


@pytest.mark.slow
@pytest.mark.parametrize("order", [(torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16)])
def test_a_config_without_dtype_keeps_every_bit(order, source, tmp_path):
    _edit(source, dtype=KeyError)
    _edit_weights(source, lambda state: {name: t.to(order["norm" in name]) for name, t in state.items()})
    assert convert_checkpoint(source, tmp_path / "out")["dtype"] == "float32"
    assert verify_checkpoint(tmp_path / "out")["dtype"] == "float32"


@pytest.mark.slow
@torch.no_grad()
def test_a_tied_table_stored_under_the_name_of_the_head(source, tmp_path):
    """safetensors' `save_model` keeps the first of two names of shared memory."""
    _edit(source, tie_word_embeddings=True)
    _edit_weights(source, lambda state: state.update({"lm_head.weight": state.pop("model.embed_tokens.weight")}))
    native = AutoModelForCausalLM.from_pretrained(source)
    convert_checkpoint(source, tmp_path / "out")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = token_ids(1, 8)
    assert (native(input_ids=ids).logits - ours(input_ids=ids).logits).abs().max().item() <= 1e-5
    assert verify_checkpoint(tmp_path / "out")["proof"]["weights"]


@pytest.mark.slow
def test_what_a_narrower_dtype_would_make_infinite(source, tmp_path):
    """In a row of the embedding that no token of the proof reads."""

    def grow(state):
        state["model.embed_tokens.weight"][:, 3] = 1e6

    _edit_weights(source, grow)
    for folder in (source, native_model("llama", "plain", num_hidden_layers=1)):
        model = folder
        if folder is not source:
            model.model.embed_tokens.weight.data[0, 3] = 1e6
        with pytest.raises(
            ValueError, match=r"model\.embed_tokens\.weight holds values up to 1e\+06, which float16 cannot hold"
        ):
            convert_checkpoint(model, tmp_path / "out", dtype="float16")
    assert [path.name for path in tmp_path.iterdir()] == ["native"]
    assert convert_checkpoint(source, tmp_path / "out", dtype="bfloat16")["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("keywords", "match"),
    [
        ({"dtype": "float99"}, "dtype='float99' is unknown; choose from float32"),
        ({"dtype": torch.float8_e4m3fn}, "dtype=torch.float8_e4m3fn is unknown; choose from float32"),
        ({"unheard_of": 1}, "'unheard_of' is neither an argument of from_pretrained nor a key of LlamaConfig"),
    ],
)
def test_arguments_of_from_native(keywords, match, source):
    with pytest.raises(ValueError, match=match):
        from_native(source, **keywords)
    if "dtype" in keywords:
        with pytest.raises(ValueError, match=match):
            from_native(native_model("llama", "plain", num_hidden_layers=1), **keywords)


@pytest.mark.slow
def test_old_files_of_t5(tmp_path):
    """They hold a table that nothing reads, and one of the three names of the token table."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    native = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))
    native.save_pretrained(tmp_path / "native")
    unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

    def age(state):
        state.update({unread: torch.ones(32, 2), "encoder.embed_tokens.weight": state.pop("shared.weight")})

    _edit_weights(tmp_path / "native", age)
    assert convert_checkpoint(tmp_path / "native", tmp_path / "out")["left"] == [unread]
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert any(torch.equal(tensor, native.shared.weight) for tensor in found.values() if tensor.shape == (64, 16))
