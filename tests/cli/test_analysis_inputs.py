"""Analysis commands and what they are given wrongly: one rule for lengths, names of what is wrong, no traceback."""

import errno
import json
import sys

import pytest

from hf_variants import VariantsConfig, VariantsForCausalLM, cli
from tests.vision import vision_config

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 64}
PAIR = {"model_type": "variants_seq2seq", "encoder": SMALL, "decoder": SMALL, "decoder_start_token_id": 0}
LLAMA = {**SMALL, "model_type": "llama", "intermediate_size": 48}


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
            "unfinished": {key: value for key, value in LLAMA.items() if key != "vocab_size"},
            "no layers": {**LLAMA, "num_hidden_layers": -2},
            "no keys": {},
            "half a law": {"law": {"E": 1}, "intervals": {}, "ranges": {}, "samples": [], "confidence": 0.95},
            "negative": {**SMALL, "hidden_size": -4},
        },
    }
    for name, keys in configs.items():
        found[name] = str(folder / f"{name}.json")
        (folder / f"{name}.json").write_text(json.dumps(keys))
    for name in ("binary.json", "recipe.yaml"):
        (folder / name).write_bytes(b"\xff\xfe\x00\x01")
    (folder / "text.txt").write_text("\n\n".join(f"word {i} and another {7 * i}" for i in range(60)))
    VariantsForCausalLM(VariantsConfig(**SMALL)).config.save_pretrained(folder / "ours without weights")
    for name, keys in (("native without weights", LLAMA), ("awq", {**LLAMA, "quantization_config": {"quant_method": "awq"}})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(keys))
        found[name] = str(folder / name)
    for name, content in (("damaged", b'{"model_type": '), ("untyped", b"{}"), ("mamba", b'{"model_type": "mamba"}')):
        (folder / f"{name} folder").mkdir()
        (folder / f"{name} folder" / "config.json").write_bytes(content)
        found[f"{name} folder"] = str(folder / f"{name} folder")
    (folder / "nothing").mkdir()
    found["nothing"] = str(folder / "nothing")
    return {
        **found,
        **{"binary": str(folder / "binary.json"), "text": str(folder / "text.txt"), "recipe": str(folder / "recipe.yaml")},
        **{"ours without weights": str(folder / "ours without weights"), "nowhere": str(folder / "nowhere")},
    }


def refused(capsys, files, words):
    """What a command says to `words`, in which {name} is a file; it must exit with 2."""
    with pytest.raises(SystemExit) as stop:
        cli.main([word.format_map(files) if "{" in word else word for word in words])
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


SOURCES = ("null", "words", "list", "type list", "unknown", "negative", "binary", "nowhere", "unfinished", "no layers")
SOURCES = (*SOURCES, "no keys", "nothing")
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
    "a stream of two stacks": (["stream", "{pair}", "--text", "{text}"], "is an encoder-decoder, whose rows see two inputs"),
    "a stream beside images": (["stream", "{vision}", "--text", "{text}"], "reads images beside its rows"),
    "key-value heads of two stacks": (["kv-heads", "{pair}", "{nowhere}", "--heads", "1"], "is an encoder-decoder"),
    "no rows": (["attention", "{decoder}", "--text", "{text}", "--rows", "0"], "--rows 0 must be at least 1"),
    "no tokens": (["attention", "{decoder}", "--text", "{text}", "--length", "0"], "--length 0 must be at least 2"),
    **{
        f"{command[0]}, {what}": ([command[0], f"{{{what}}}", *command[1:]], said)
        for command in (
            ["attention", "--text", "{text}"],
            ["stream", "--text", "{text}"],
            ["kv-heads", "{nowhere}", "--heads", "1"],
            ["image-attention", "--text", "x", "--image", "{text}"],
        )
        for what, said in (
            ("nothing", "has no config.json"),
            ("damaged folder", "is not valid JSON"),
            ("untyped folder", "names no model_type"),
            ("mamba folder", "mamba"),
            ("text", "is a file; give the folder of a checkpoint"),
        )
    },
    **{
        f"key-value heads, {words[0]}": (["kv-heads", "{ours without weights}", "{nowhere}", "--heads", "2", *words], said)
        for words, said in (
            (("--method", "max"), "method='max' is unknown; choose from ['first', 'mean', 'svd']"),
            (("--order", "max"), "order='max' is unknown; choose from ['kept', 'similar']"),
            (("--window", "1"), "window=1 must be at least 2"),
            (("--max-tokens", "0"), "max_tokens=0 must be at least 2"),
            (("--text", "{nowhere}"), "--text"),
            (("--calibration", "{binary}"), "--calibration"),
            (("--window", "64"), "window=64 cuts texts, and none is read"),
            (("--max-tokens", "64"), "max_tokens=64 cuts texts, and none is read"),
        )
    },
    "half a device": (
        ["scaling", "plan", "--hours", "1", "--devices", "0.5", "--peak-tflops", "9", "--mfu", "0.3"],
        "devices=0.5 must be a whole number",
    ),
    "a field of a hundred million": (["receptive-field", "{decoder}", "--length", "100000000"], "and at most 16384"),
    "no capacity": (["stream", "{decoder}", "--text", "{text}", "--capacity", "0"], "--capacity 0 must be at least 1"),
    "numbers nowhere": (
        ["stream", "{decoder}", "--text", "{text}", "--output", "no/a.json"],
        "output='no/a.json': the directory",
    ),
    "numbers in a picture": (["stream", "{decoder}", "--text", "{text}", "--output", "a.png"], "choose from .json"),
    "no call": (["stream", "{decoder}", "--text", "{text}", "--tokens-per-call", "0"], "--tokens-per-call 0"),
    "runs that are no text": (["scaling", "fit", "{binary}"], "binary.json is not UTF-8"),
    "negative document": (["tokenizer", "sweep", "{text}", "--sizes", "260", "--document-bytes", "-1"], "document_bytes=-1"),
    "negative tables": (
        ["tokenizer", "sweep", "{text}", "--sizes", "260", "--max-table-parameters", "-1"],
        "greater than zero",
    ),
    "no text to sweep": (["tokenizer", "sweep", "{text}/no.txt", "--sizes", "260"], "FILES"),
    "bytes to calibrate on": (
        ["quality-of-quantization", "{ours without weights}", "int8", "--calibration", "{binary}"],
        "--calibration",
    ),
    "two vocabularies": (["tokenizer", "sweep", "{text}", "--sizes", "260", "--config", "{pair}"], "is an encoder-decoder"),
    "a law in bytes": (["scaling", "plan", "--flops", "1e20", "--law", "{binary}"], "binary.json' is not valid JSON"),
    "half a law": (["scaling", "plan", "--flops", "1e20", "--law", "{half a law}"], "half a law.json' is no law written by"),
    "a law of a list": (["scaling", "plan", "--flops", "1e20", "--law", "{list}"], "holds a list, not a law"),
    "absurd quality": (["scaling", "plan", "--flops", "1e20", "--quality", "1e9"], "quality=1000000000.0 is out of range"),
    "a language twice": (
        ["tokenizer", "report", "{nowhere}", "--text", "en={text}", "--text", "en={text}"],
        "--text en= is given twice; join its files",
    ),
    "no seeds": (["extrapolate", "recipes/extrapolate.yaml", "seeds=[]"], "seeds=[] must be at least one whole number"),
    "one seed twice": (["extrapolate", "recipes/extrapolate.yaml", "seeds=[0,0]"], "seeds=[0, 0] must be at least one"),
    "a recipe that is no text": (["extrapolate", "{recipe}"], "is not valid YAML: 'utf-8' codec can't decode"),
    "runs in a file": (["extrapolate", "recipes/extrapolate.yaml", "output_dir={text}/runs"], "is a file, and no folder can"),
    "runs that cannot be written": (["extrapolate", "recipes/extrapolate.yaml", "output_dir=/proc/x"], "cannot be written"),
    "no such quantization": (["quality-of-quantization", "{nowhere}", "int9"], "give a quantized folder, or one of ['nf4'"),
    "no key": (["count", "{decoder}", "=3"], "'=3' is no setting"),
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


@pytest.mark.parametrize("command", ["describe", "diff", "count", "plan-memory"])
def test_an_option_that_is_misspelt_is_no_key_of_a_config(command, files, capsys):
    said = refused(capsys, files, [*READERS[command], "--lenght", "8"])
    assert f"--lenght is no option of {command} (did you mean --length?), and no key of a config" in said


PLOTS = {
    **READERS,
    "scaling table": ["scaling", "table"],
    "scaling fit": ["scaling", "fit", "{nowhere}"],
    "tokenizer report": ["tokenizer", "report", "{nowhere}"],
    "quality-of-quantization": ["quality-of-quantization", "{nowhere}", "int8"],
}


@pytest.mark.parametrize("command", PLOTS)
def test_a_figure_that_cannot_be_written_is_refused_before_any_work(command, files, capsys, tmp_path):
    (tmp_path / "folder.png").mkdir()
    places = {
        "folder.png": "is a directory; name a file",
        "plot.gif": "has suffix '.gif'; choose from .png, .svg, .pdf",
        "missing/plot.png": "does not exist",
        # no file can be made there, even by root
        "/proc/plot.png": "cannot be written",
    }
    for place, words in places.items():
        said = refused(capsys, files, [*PLOTS[command], "--plot", str(tmp_path / place)])
        assert words in said and place in said
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_a_law_that_cannot_be_written_is_refused_before_the_fit(files, capsys, tmp_path):
    for place, words in (
        ("missing/law.json", "does not exist"),
        ("law.txt", "choose from .json"),
        ("/proc/law.json", "cannot"),
    ):
        assert words in refused(capsys, files, ["scaling", "fit", "{nowhere}", "--output", str(tmp_path / place)])


@pytest.mark.parametrize("command", ["count", "plan-memory", "diff", pytest.param("describe", marks=pytest.mark.slow)])
def test_a_quantized_checkpoint_is_counted_as_dense_weights_and_said_to_be(command, files, capsys):
    words = [files["awq"] if word == "{decoder}" else word for word in READERS[command]]
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "--length", "16", "--json"])
    printed = capsys.readouterr()
    assert stop.value.code == 0 and json.loads(printed.out)
    said = " ".join(printed.err.split())
    assert said.endswith("is quantized (awq); its weights are counted as dense ones") and said.count("note:") == 1


def test_a_full_disk_is_one_line(monkeypatch, capsys):
    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

        def flush(self):
            pass

    from hf_variants.cli import console

    monkeypatch.setattr(console.console, "_file", Full())
    with pytest.raises(SystemExit) as stop:
        cli.main(["scaling", "table"])
    assert stop.value.code == 1 and capsys.readouterr().err.strip() == "error: No space left on device"


def test_without_matplotlib(files, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for words in PLOTS.values():
        said = refused(capsys, files, [*words, "--plot", str(tmp_path / "plot.png")])
        assert "needs matplotlib, which is not installed" in said
    for words in (["extrapolate", "recipes/extrapolate.yaml"], ["scaling", "study", "recipes/scaling/study.yaml"]):
        said = refused(capsys, files, [*words, f"output_dir={tmp_path / 'runs'}"])
        assert "needs matplotlib, which is not installed" in said
    assert not list(tmp_path.iterdir())


def test_a_refused_conversion_speaks_of_its_own_family_alone(caplog, capsys):
    from hf_variants.convert.config_conversion import config_to_native

    with pytest.raises(ValueError, match="llama cannot express qk_norm='head'"):
        config_to_native(VariantsConfig(**SMALL, qk_norm="head"), "llama")
    assert not caplog.records and not capsys.readouterr().err


def test_texts_are_named_by_their_option(tmp_path):
    from hf_variants.jobs.texts import documents

    files = {"plain": b"one\n\ntwo\nlines\n", "empty": b" \n\n", "latin": b"caf\xe9", "zeros": b"a\0b"}
    for name, content in files.items():
        for ending in ("", ".txt"):
            (tmp_path / f"{name}{ending}").write_bytes(content)
    for ending in ("", ".txt"):
        assert [text.strip() for text in documents(str(tmp_path / f"plain{ending}"), "--text")] == ["one", "two\nlines"]
        for name, said in (("empty", "no document with text"), ("latin", "not UTF-8"), ("zeros", "is binary"), ("gone", "no")):
            with pytest.raises(ValueError, match=said) as refusal:
                documents(str(tmp_path / f"{name}{ending}"), "--text")
            assert "--text" in str(refusal.value) and "data." not in str(refusal.value)


def test_a_path_that_looks_like_a_key_of_a_recipe_is_said_whole(tmp_path):
    from hf_variants.jobs.texts import documents

    for name, content in (("data.txt", b"caf\xe9"), ("data.empty.txt", b" \n"), ("data.zeros.txt", b"a\0b")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="--text") as refusal:
            documents(str(tmp_path / name), "--text")
        assert str(tmp_path / name) in str(refusal.value)


def test_what_another_process_is_writing_is_left_alone(tmp_path):
    from hf_variants.report.output_file import check_output_folder, check_output_path, partial_path

    half = partial_path(tmp_path / "law.json")
    half.write_text("half")
    check_output_path("output", tmp_path / "law.json", (".json",))
    check_output_folder("output_dir", tmp_path / "law.json")
    assert [*tmp_path.iterdir()] == [half] and half.read_text() == "half"


def test_too_little_memory_is_one_line(capsys, monkeypatch):
    import torch

    from hf_variants.cli import app

    def ask(**options):
        torch.empty(1 << 60)

    monkeypatch.setattr(app, "make_app", lambda: ask)
    with pytest.raises(SystemExit) as stop:
        app.run([])
    assert stop.value.code == 1 and "not enough memory" in capsys.readouterr().err
