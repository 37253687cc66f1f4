"""Tokenizer reports count what the tokenizer does; sweeps agree with the counters of the config."""

import json

import pytest

from hf_variants import cli
from hf_variants.analysis import count_parameters, flops_per_token
from hf_variants.presets import load_preset
from hf_variants.tokens import sample_texts, sweep_vocabulary, tokenizer_report
from hf_variants.training.specs import TokenizerSpec
from hf_variants.training.tokenizer import train_tokenizer

WORDS = ["in the beginning was the word", "and the word was with the light", "the earth was without form and void"]
TEXT = [" ".join(WORDS[(i * 7 + j) % 3] for j in range(5)) + f" number {i}" for i in range(60)]


class Bytes:
    """One token per byte: every count is known."""

    unk_token_id = None

    def __len__(self):
        return 256

    def __call__(self, text, add_special_tokens):
        return {"input_ids": list(text.encode("utf-8"))}

    def decode(self, ids):
        return bytes(ids).decode("utf-8")


class AsciiOnly(Bytes):
    unk_token_id = 0

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [ord(letter) if ord(letter) < 128 else 0 for letter in text]}


def test_a_byte_tokenizer_has_one_token_per_byte_everywhere():
    rows = tokenizer_report({"bytes": Bytes()})
    assert [row["language"] for row in rows] == ["english", "chinese", "japanese", "korean", "code"]
    by_language = {row["language"]: row for row in rows}
    for language, text in sample_texts().items():
        row = by_language[language]
        assert row["tokens"] == row["bytes"] == len(text.encode()) and row["tokens_per_byte"] == 1
        assert row["tokens_per_character"] == len(text.encode()) / len(text) and row["lossless"]
    assert by_language["english"]["inflation"] == 1 and by_language["code"]["inflation"] is None
    assert by_language["korean"]["inflation"] == by_language["korean"]["bytes"] / by_language["english"]["bytes"]
    # three bytes a character: what a byte-level vocabulary learned on English text costs a Chinese reader
    assert by_language["chinese"]["tokens_per_character"] == pytest.approx(3, abs=0.01)


def test_lost_text_is_reported():
    rows = {row["language"]: row for row in tokenizer_report({"ascii": AsciiOnly()})}
    assert rows["english"]["lossless"] and rows["english"]["unknown"] == 0
    assert not rows["chinese"]["lossless"] and rows["chinese"]["unknown"] == rows["chinese"]["characters"]


def test_own_texts_and_bad_ones():
    rows = tokenizer_report({"bytes": Bytes()}, {"latin": "abc"})
    assert rows[0]["tokens"] == 3 and rows[0]["inflation"] is None
    with pytest.raises(ValueError, match="'empty'"):
        tokenizer_report({"bytes": Bytes()}, {"empty": "  "})
    with pytest.raises(ValueError, match="name at least one"):
        tokenizer_report({})


def test_a_sweep_counts_with_the_config_s_own_counters():
    config, sizes = load_preset("quickstart"), [280, 300]
    costs, best = sweep_vocabulary(TEXT[:50], TEXT[50:], sizes, config, document_bytes=400)
    text = "\n\n".join(TEXT[50:])
    for size, cost in zip(sizes, costs, strict=True):
        tokenizer = train_tokenizer(TEXT[:50], TokenizerSpec(vocab_size=size))
        per_byte = len(tokenizer(text, add_special_tokens=False)["input_ids"]) / len(text.encode())
        config.vocab_size = size
        assert cost.tokens_per_byte == per_byte and cost.tokens_of_document == round(400 * per_byte)
        assert cost.parameters == count_parameters(config).total
        flops = flops_per_token(config, cost.tokens_of_document)
        assert cost.forward_flops_per_byte == pytest.approx(flops.total * per_byte)
        assert 0 < cost.output_flops_per_byte < cost.forward_flops_per_byte
    assert costs[0].tokens_per_byte > costs[1].tokens_per_byte and costs[best].forward_flops_per_byte == min(
        cost.forward_flops_per_byte for cost in costs
    )


def test_a_budget_leaves_larger_tables_out():
    config = load_preset("quickstart")
    costs, best = sweep_vocabulary(TEXT, TEXT[:5], [280, 300], config, max_table_parameters=280 * config.hidden_size)
    assert best == 0 and len(costs) == 2
    assert sweep_vocabulary(TEXT, TEXT[:5], [280], config, max_table_parameters=1)[1] is None


@pytest.mark.parametrize(
    "sizes, match", [([100], "vocab_size"), ([60000], "more than this text fills"), ([], "sizes is empty")]
)
def test_sizes_that_cannot_be(sizes, match):
    with pytest.raises(ValueError, match=match):
        sweep_vocabulary(TEXT, TEXT, sizes, load_preset("quickstart"))


def command(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        cli.main(["tokenizer", *words])
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


def test_command_line(tmp_path, capsys):
    folder, text = tmp_path / "bpe", tmp_path / "text.txt"
    train_tokenizer(TEXT, TokenizerSpec(vocab_size=300)).save_pretrained(folder)
    text.write_text("\n\n".join(TEXT))
    code, out, _ = command(capsys, "report", str(folder), "--json", "--plot", str(tmp_path / "report.png"))
    rows = json.loads(out)
    assert code == 0 and len(rows) == 5 and all(row["lossless"] for row in rows)
    assert (tmp_path / "report.png").read_bytes()[:4] == b"\x89PNG"
    code, out, _ = command(capsys, "report", str(folder), "--text", f"mine={text}")
    assert code == 0 and "mine" in out
    code, out, _ = command(capsys, "sweep", str(text), "--sizes", "280,300", "--json", "--plot", str(tmp_path / "sweep.svg"))
    assert code == 0 and [cost["vocabulary"] for cost in json.loads(out)["costs"]] == [280, 300]
    assert b"<svg" in (tmp_path / "sweep.svg").read_bytes()
    code, out, _ = command(capsys, "sweep", str(text), "--sizes", "280,300")
    assert code == 0 and "fewest forward FLOPs per byte" in out


@pytest.mark.parametrize(
    "words, match",
    [
        (["report", "nowhere"], "holds no tokenizer"),
        (["report", "nowhere", "--text", "english"], "LANGUAGE=FILE"),
        (["sweep", "nowhere.txt"], "nowhere.txt"),
        (["sweep", "nowhere.txt", "--sizes", "many"], "whole numbers"),
        (["report", "nowhere", "--plot", "plot.bmp"], "choose from .png"),
    ],
)
def test_command_line_mistakes(capsys, words, match):
    code, _, err = command(capsys, *words)
    assert code == 2 and match in err
