"""What the job of `hf-variants quantize` chooses to calibrate on, and what it refuses to leave unread."""

import pytest

from hf_variants.jobs import QuantizeSpec
from hf_variants.jobs.quantization import calibration_ids, check_quantization, pair_batches, quantize, rounding_beside
from hf_variants.seq2seq.specs import PairsSpec
from hf_variants.training.packing import encode_documents, pack
from hf_variants.training.spec_parsing import build_spec
from hf_variants.training.specs import TokenizerSpec
from hf_variants.training.tokenizer import train_tokenizer
from tests.variants import tiny_pair

WORDS = [f"{a} {b} {c}" for a in ("one", "two", "three") for b in ("four", "five") for c in ("six", "seven")]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(WORDS, TokenizerSpec(vocab_size=280), "seq2seq")


@pytest.mark.parametrize("wanted", [1, 3, "all", "more", 1000])
def test_rows_are_spread_evenly_and_each_is_taken_once(wanted, tokenizer):
    rows = [list(row["input_ids"]) for row in pack(encode_documents(WORDS, tokenizer), 6)]
    assert len(rows) > 6 and len({tuple(row) for row in rows}) == len(rows)
    count = {"all": len(rows), "more": len(rows) + 3}.get(wanted, wanted)
    chosen = [rows.index(row) for row in calibration_ids(WORDS, tokenizer, count, 6).tolist()]
    least = min(count, len(rows))
    assert len(chosen) == least and chosen == sorted(set(chosen))
    steps = [b - a for a, b in zip(chosen, [*chosen[1:], len(rows)], strict=True)]
    assert chosen[0] == 0 and max(steps) - min(steps) <= 1


@pytest.mark.parametrize("wanted", [1, 5, 12, 32])
def test_pairs_are_taken_once_each(wanted, tokenizer):
    records = [{"source": text, "target": text.split()[0]} for text in WORDS]
    config = tiny_pair(pad_token_id=tokenizer.pad_token_id)
    spec = build_spec(QuantizeSpec, {"model_path": "m", "output_dir": "o", "pairs": {"source": "x"}})
    batches = pair_batches(records, tokenizer, config, spec, wanted)
    read = [tuple(row.tolist()) for batch in batches for row in batch["input_ids"]]
    assert len(read) == min(wanted, len(records)) and len({tokenizer.decode(row) for row in read}) == len(read)


@pytest.mark.parametrize("key", [name for name in vars(PairsSpec()) if name != "source"])
def test_every_key_of_pairs_wants_their_source(key):
    other = {"over_long": "drop", "eval_fraction": 0.5, "split_seed": 3, "prefix": "x"}
    value = other.get(key, 7 if key.startswith("max_") else "x")
    keys = {"model_path": "absent", "output_dir": "out", "calibration": "text.txt", "pairs": {key: value}}
    with pytest.raises(ValueError, match=rf"pairs has \['{key}'\] but no pairs.source"):
        check_quantization(build_spec(QuantizeSpec, keys))


def test_the_rounding_beside_an_awq_run_can_be_run():
    given = {"calibration_rows": 8, "calibration_length": 64, "clip": False, "symmetric": True, "group_size": 32}
    awq = build_spec(QuantizeSpec, {"model_path": "absent", "output_dir": "out", "calibration": "text.txt", **given})
    rounding = rounding_beside(awq, "other")
    check_quantization(rounding)
    assert (rounding.method, rounding.output_dir, rounding.symmetric, rounding.group_size) == ("rtn", "other", True, 32)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a.txt", "q", "model_path='.*a.txt' is a file; name the folder of a checkpoint"),
        ("full", "a.txt/q", "would lie in '.*a.txt', which is a file"),
        ("full", "/proc/q", "'/proc/q' cannot be made .*name another one"),
    ],
)
def test_places_that_are_files_are_refused_in_words(source, target, message, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "full").mkdir()
    keys = {"model_path": str(tmp_path / source), "output_dir": str(tmp_path / target), "method": "rtn"}
    with pytest.raises(ValueError, match=message):
        quantize(build_spec(QuantizeSpec, keys))
