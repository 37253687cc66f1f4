"""A config is read from whatever names one, and from its config.json alone."""

import json

import huggingface_hub
import pytest
from transformers import CONFIG_MAPPING, LlamaConfig

from hf_variants import VariantsConfig
from hf_variants.convert import config_from_native, config_to_native, family_names, find_family, read_config
from hf_variants.convert.config_source import quantization_of, read_any_config
from hf_variants.convert.meaning import differences
from hf_variants.presets import load_preset, preset_keys

NATIVE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture
def native():
    return LlamaConfig(**NATIVE, num_key_value_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 5e5})


@pytest.fixture
def named(native, tmp_path, monkeypatch):
    """{what names a config: (source, the config it should give)}."""
    converted = config_from_native(native)
    ours = load_preset("tiny/mla")
    native.save_pretrained(tmp_path / "native")
    ours.save_pretrained(tmp_path / "ours")
    (tmp_path / "keys.json").write_text(json.dumps(preset_keys("tiny/mla")))
    legacy = {**NATIVE, "model_type": "llama", "num_key_value_heads": 2, "rope_theta": 5e5, "rope_scaling": None}
    (tmp_path / "legacy.json").write_text(json.dumps(legacy))
    asked = []

    def download(repo, filename, **_):
        asked.append((repo, filename))
        return str(tmp_path / "native" / filename)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return {
        "preset": ("tiny/mla", ours),
        "config": (ours, ours),
        "native config": (native, converted),
        "our folder": (tmp_path / "ours", ours),
        "native folder": (str(tmp_path / "native"), converted),
        "native file": (tmp_path / "native" / "config.json", converted),
        "file of keys": (tmp_path / "keys.json", ours),
        "file of old keys": (tmp_path / "legacy.json", converted),
        "hub id": ("someone/a-llama", converted),
    }


FORMS = [
    *("preset", "config", "native config", "our folder", "native folder", "native file"),
    *("file of keys", "file of old keys", "hub id"),
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form(named, form):
    source, expected = named[form]
    assert differences(read_config(source), expected) == {}
    changed = read_config(source, attention_sinks=True)
    assert changed.attention_sinks and set(differences(changed, expected)) == {"attention_sinks"}
    with pytest.raises(ValueError, match="did you mean 'attention_sinks'"):
        read_config(source, attention_sink=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "holds a list"),
        ('{"model_type": "llamas"}', "nearest known: llama"),
        ('{"model_type": "mamba"}', "state-space layers"),
        (
            '{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}',
            "text_config is of model_type='gemma3_text'",
        ),
        ('{"model_type": "llama", "hidden_size": "wide"}', "hidden_size"),
        ('{"hidden_sise": 3}', "did you mean 'hidden_size'"),
    ],
)
def test_bad_configs_are_named(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("llama-3-9b", r"did you mean 'llama-3-8b'.*nor is it a .json, a folder, or an id of the Hub"),
        ("absent.json", "is not a file"),
        ("tiny/mlaa", "did you mean 'tiny/mla'"),
        ("nobody/nothing", "no config.json of that Hub id"),
    ],
)
def test_what_names_nothing(source, message):
    with pytest.raises(ValueError, match=message):
        read_config(source)


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(ValueError, match=r"has no config.json"):
        read_config(tmp_path)


@pytest.mark.parametrize("number", [int, float])
@pytest.mark.parametrize("name", family_names())
def test_a_whole_number_is_written_whether_it_is_1_or_1_0(name, number):
    """Native fields are strict about int and float, those of nested configs too; ours take either."""
    config = config_from_native(CONFIG_MAPPING[name](**find_family(name).needs))
    config.native = None
    for field, annotation in VariantsConfig.__annotations__.items():
        value = getattr(config, field, None)
        if annotation in (float, float | None) and value is not None and float(value).is_integer():
            setattr(config, field, number(value))
    assert config_to_native(config, name).model_type == name


T5 = {"model_type": "t5", "d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
BART = {
    **{"model_type": "bart", "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 64, "pad_token_id": 1},
}


@pytest.mark.parametrize("keys", [T5, BART], ids=["t5", "bart"])
def test_an_encoder_decoder_without_a_start_token_says_what_is_missing(keys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**keys, "decoder_start_token_id": None}))
    with pytest.raises(ValueError, match="decoder_start_token_id=None"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**keys, "decoder_start_token_id": 0}))
    assert read_config(tmp_path).decoder_start_token_id == 0


def test_a_t5_config_that_names_no_start_token(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(T5))
    with pytest.raises(ValueError, match="decoder_start_token_id=None"):
        read_config(tmp_path)


@pytest.mark.parametrize("read", [read_config, read_any_config])
def test_a_path_with_the_name_of_a_preset_is_no_guess(read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read("gpt2").hidden_size == 768
    VariantsConfig(hidden_size=64, num_attention_heads=4).save_pretrained("gpt2")
    with pytest.raises(ValueError, match=r"'gpt2' is a preset and also a path here; write './gpt2'"):
        read("gpt2")
    assert read("./gpt2").hidden_size == 64


@pytest.mark.parametrize("keys", [{}, {"hidden_size": 64}])
@pytest.mark.parametrize("read", [read_config, read_any_config])
def test_a_checkpoint_that_does_not_say_its_type_is_not_taken_for_ours(read, keys, tmp_path):
    """The family's defaults would fill in what is missing, and every number after that would be theirs."""
    (tmp_path / "config.json").write_text(json.dumps(keys))
    with pytest.raises(ValueError, match="names no model_type"):
        read(tmp_path)


# model type -> the sizes of a small model of it, by transformers' names
SIZES = {
    "llama": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64},
    "bloom": {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 64},
    "t5": {**T5, "decoder_start_token_id": 0},
}


@pytest.mark.parametrize("model_type", SIZES)
def test_a_native_config_without_a_size_is_not_filled_in(model_type, tmp_path):
    """transformers takes the size of another model, and every number after that would be its."""
    keys, path = {"model_type": model_type, "eos_token_id": 1, **SIZES[model_type]}, tmp_path / "config.json"
    keys |= {"bos_token_id": 1} if model_type == "gpt2" else {}
    path.write_text(json.dumps(keys))
    whole = read_config(path)
    for size in SIZES[model_type].keys() - {"model_type", "decoder_start_token_id"}:
        path.write_text(json.dumps({key: value for key, value in keys.items() if key != size}))
        with pytest.raises(ValueError, match=rf"config.json lacks {size}, for which transformers would take"):
            read_config(path)
        path.write_text(json.dumps({**keys, size: 0}))
        with pytest.raises(ValueError, match=rf"config.json: {size}=0 must be at least 1"):
            read_config(path)
    # what KEY=VALUE words bring need not be in the file, nor an older name that the class still reads
    path.write_text(json.dumps({key: value for key, value in keys.items() if key != "vocab_size"}))
    if model_type != "t5":
        assert read_config(path, vocab_size=64).vocab_size == 64
    path.write_text(json.dumps({**{key: value for key, value in keys.items() if key != "hidden_size"}, "n_embed": 32}))
    if model_type == "bloom":
        assert read_config(path).hidden_size == whole.hidden_size == 32


def test_a_config_file_of_nothing_is_not_the_default_model(tmp_path):
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(ValueError, match="empty.json' is empty; it must hold config keys"):
        read_config(tmp_path / "empty.json")


def test_whether_a_checkpoint_is_quantized_stands_in_its_config(tmp_path):
    for name, said in (("plain", {}), ("awq", {"quantization_config": {"quant_method": "awq"}})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"model_type": "llama", **SIZES["llama"], **said}))
    assert quantization_of(tmp_path / "awq.json") == "awq"
    assert quantization_of(tmp_path / "plain.json") is quantization_of("gpt2") is quantization_of(VariantsConfig()) is None
