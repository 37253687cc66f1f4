"""Planning commands read a preset, a native config.json and a family folder, and give tables, plain data and a figure."""

import json

import pytest

from hf_variants import VariantsConfig, VariantsSeq2SeqConfig, cli
from tests.cli.test_analysis_inputs import LLAMA, SMALL

T5 = {"model_type": "t5", "d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4, "d_kv": 8, "vocab_size": 64}
COMMANDS = {
    "describe": ["describe", "{one}"],
    "diff": ["diff", "{one}", "{one}", "hidden_act=relu"],
    "count": ["count", "{one}", "--length", "32"],
    "profile-cache": ["profile-cache", "{one}", "--length", "32"],
    "plan-memory": ["plan-memory", "{one}", "--length", "32"],
    "receptive-field": ["receptive-field", "{one}", "--length", "16"],
    "scaling plan": ["scaling", "plan", "--flops", "1e18", "--config", "{one}"],
    "tokenizer sweep": ["tokenizer", "sweep", "{text}", "--sizes", "270", "--document-bytes", "32", "--config", "{one}"],
    "profile-cross": ["profile-cross", "{two}", "--encoder-lengths", "8,16", "--length", "8"],
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """{kind: {"one": a decoder, "two": an encoder-decoder, "text": a text}}."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "llama.json").write_text(json.dumps(LLAMA))
    (folder / "t5.json").write_text(json.dumps({**T5, "decoder_start_token_id": 0}))
    VariantsConfig(**SMALL).save_pretrained(folder / "ours")
    VariantsSeq2SeqConfig(encoder=SMALL, decoder=SMALL, decoder_start_token_id=0).save_pretrained(folder / "pair")
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"the light shines in the darkness {i} times and {i % 7} more" for i in range(80)))
    kinds = {
        "preset": ("tiny/sliding-window", "tiny/encoder-decoder"),
        "native config": (folder / "llama.json", folder / "t5.json"),
        "family folder": (folder / "ours", folder / "pair"),
    }
    return {kind: {"one": str(one), "two": str(two), "text": str(text)} for kind, (one, two) in kinds.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["preset", "native config", "family folder"])
@pytest.mark.parametrize("command", COMMANDS)
def test_tables_plain_data_and_a_figure(command, kind, sources, capsys, tmp_path):
    words = [word.format_map(sources[kind]) for word in COMMANDS[command]]
    plot = tmp_path / "figure.png"
    for more in ([], ["--json", "--plot", str(plot)]):
        with pytest.raises(SystemExit) as stop:
            cli.main([*words, *more])
        printed = capsys.readouterr()
        assert stop.value.code == 0, printed.err
        if more:
            assert json.loads(printed.out) and plot.read_bytes()[:4] == b"\x89PNG"
        else:
            assert "│" in printed.out
