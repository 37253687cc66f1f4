"""Analysis commands and what they are given wrongly: one rule for lengths, names of what is wrong, no traceback."""

import json
import sys

import pytest

from hf_variants import VariantsConfig, VariantsForCausalLM, cli
from tests.vision import vision_config

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 64}
PAIR = {"model_type": "variants_seq2seq", "encoder": SMALL, "decoder": SMALL, "decoder_start_token_id": 0}
LLAMA = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{name: path} of configs of every member kind and of broken ones, a text, and a folder without weights."""
    folder, found = tmp_path_factory.mktemp("inputs"), {}
    configs = {
        **{"decoder": SMALL, "encoder": {**SMALL, "is_causal": False}, "pair": PAIR, "vision": vision_config().to_dict()},
        **{"null": {**LLAMA, "num_hidden_layers": None}, "words": {**LLAMA, "hidden_size": "32"}, "list": [1]},
        **{
            "type list": {"model_type": ["llama"]},
            "unknown": {"model_type": "mamba"},
            "negative": {**SMALL, "hidden_size": -4},
        },
    }
    for name, keys in configs.items():
        found[name] = str(folder / f"{name}.json")
        (folder / f"{name}.json").write_text(json.dumps(keys))
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "text.txt").write_text("\n\n".join(f"word {i} and another {7 * i}" for i in range(60)))
    VariantsForCausalLM(VariantsConfig(**SMALL)).config.save_pretrained(folder / "ours without weights")
    for name, keys in (("native without weights", LLAMA), ("awq", {**LLAMA, "quantization_config": {"quant_method": "awq"}})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(keys))
        found[name] = str(folder / name)
    return {
        **found,
        **{"binary": str(folder / "binary.json"), "text": str(folder / "text.txt")},
        **{"ours without weights": str(folder / "ours without weights"), "nowhere": str(folder / "nowhere")},
    }


def refused(capsys, files, words):
    """What a command says to `words`, in which {name} is a file; it must exit with 2."""
    with pytest.raises(SystemExit) as stop:
        cli.main([word.format_map(files) if word.startswith("{") else word for word in words])
    printed = capsys.readouterr()
    assert stop.value.code == 2, (words, printed.out[-300:], printed.err[-300:])
    return " ".join(printed.err.split())


READERS = {
    "describe": ["describe", "{decoder}"],
    "count": ["count", "{decoder}"],
    "diff": ["diff", "{decoder}", "{decoder}"],
    "profile-cache": ["profile-cache", "{decoder}"],
    "profile-cross": ["profile-cross", "{pair}"],
    "plan-memory": ["plan-memory", "{decoder}"],
    "receptive-field": ["receptive-field", "{decoder}"],
}


@pytest.mark.parametrize("command", READERS)
def test_one_rule_for_lengths_and_words(command, files, capsys):
    for length in ("0", "-1"):
        said = refused(capsys, files, [*READERS[command], "--length", length])
        assert f"length={length}" in said and "at least" in said
    assert "valid integer" in refused(capsys, files, [*READERS[command], "--length", "1.5"])
    prefix = "decoder." if command == "profile-cross" else ""
    assert "hidden_size=0 must be greater" in refused(capsys, files, [*READERS[command], f"{prefix}hidden_size=0"])
    assert "did you mean 'hidden_size'" in refused(capsys, files, [*READERS[command], f"{prefix}hidden_sise=4"])


SOURCES = ("null", "words", "list", "type list", "unknown", "negative", "binary", "nowhere")
ONE_STACK = ("describe", "profile-cache", "receptive-field")


@pytest.mark.parametrize(
    "command, source",
    [(command, source) for command in (*ONE_STACK, "plan-memory") for source in SOURCES]
    + [(command, "vision") for command in ONE_STACK],
)
def test_a_source_that_cannot_be_read_is_named(command, source, files, capsys):
    said = refused(capsys, files, [command, files[source]])
    named = {"negative": "hidden_size=-4 must be greater than zero", "vision": "reads images"}
    assert named.get(source, files[source]) in said or "transformers refuses the llama config" in said, said


# what is wrong -> words, and what must be said
WRONG = {
    "unknown dtype": (["count", "{decoder}", "--dtype", "floot"], "dtype='floot' is no dtype of torch"),
    "two stacks, one row": (["receptive-field", "{pair}"], "is an encoder-decoder"),
    "images of a text model": (["image-cost", "{decoder}"], "holds no config that can be read"),
    "no weights of ours": (["quality-of-quantization", "{ours without weights}", "int8"], "no whole weights found"),
    "no native weights": (["quality-of-quantization", "{native without weights}", "int8"], "weights"),
    "quantized": (["attention", "{awq}", "--text", "{text}"], "already quantised (quant_method='awq')"),
    "heads of two stacks": (["attention", "{pair}", "--text", "{text}"], "is an encoder-decoder, whose rows see two inputs"),
    "heads beside images": (["attention", "{vision}", "--text", "{text}"], "for this one: image-attention"),
    "key-value heads of two stacks": (["kv-heads", "{pair}", "{nowhere}", "--heads", "1"], "is an encoder-decoder"),
    "no rows": (["attention", "{decoder}", "--text", "{text}", "--rows", "0"], "--rows 0 must be at least 1"),
    "no tokens": (["attention", "{decoder}", "--text", "{text}", "--length", "0"], "--length 0 must be at least 2"),
    "no call": (["stream", "{decoder}", "--text", "{text}", "--tokens-per-call", "0"], "--tokens-per-call 0"),
    "runs that are no text": (["scaling", "fit", "{binary}"], "binary.json is not UTF-8"),
    "negative document": (["tokenizer", "sweep", "{text}", "--sizes", "260", "--document-bytes", "-1"], "document_bytes=-1"),
    "negative tables": (
        ["tokenizer", "sweep", "{text}", "--sizes", "260", "--max-table-parameters", "-1"],
        "greater than zero",
    ),
    "two vocabularies": (["tokenizer", "sweep", "{text}", "--sizes", "260", "--config", "{pair}"], "is an encoder-decoder"),
    "negative budget": (["scaling", "plan", "--flops", "-1"], "flops=-1.0 is out of range"),
    "no model": (["profile-cache", "hidden_size=4"], "hidden_size=4 changes a config, and none is named"),
    "changed weights": (["profile-cache", "{decoder}", "--vary", "head_dim=4", "--text", "{text}"], "leave changes out"),
    **{
        f"{command}, {what}": ([*READERS[command], *words], said)
        for command, key in (("profile-cache", "rope_theta"), ("profile-cross", "decoder.rope_theta"))
        for what, words, said in (
            ("one name twice", ["--vary", f"a:{key}=4", "--vary", f"a:{key}=8"], "'a' names two configs"),
            ("a name that is the source", [READERS[command][1]], "names two configs"),
            ("one key twice", ["--vary", f"a:{key}=4,{key}=8"], f"gives {key} twice"),
        )
    },
    "many bytes": (["profile-cache", "llama-3-8b", "--measure"], "GB of weights, 32 of them of llama-3-8b"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said(what, files, capsys):
    words, said = WRONG[what]
    assert said in refused(capsys, files, words)


def test_without_matplotlib(files, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for words in READERS.values():
        said = refused(capsys, files, [*words, "--plot", str(tmp_path / "plot.png")])
        assert "needs matplotlib, which is not installed" in said


def test_a_refused_conversion_speaks_of_its_own_family_alone(caplog, capsys):
    from hf_variants.convert.config_conversion import config_to_native

    with pytest.raises(ValueError, match="llama cannot express qk_norm='head'"):
        config_to_native(VariantsConfig(**SMALL, qk_norm="head"), "llama")
    assert not caplog.records and not capsys.readouterr().err
