"""The text and the model that the tests and the quickstart stand on are the ones described."""

import hashlib
import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).parents[1] / "recipes" / "data"


def test_corpus_has_its_books_chapters_and_verses():
    books = [book.strip("\n").split("\n") for book in (DATA / "kjv.txt").read_text("ascii").split("\n\n")]
    chapters = sum(bool(re.fullmatch(r"Chapter \d+", line)) for book in books for line in book)
    lines = sum(len(book) for book in books)
    assert (len(books), chapters, lines - chapters - len(books)) == (66, 1189, 31102)
    assert books[0][:3] == ["Genesis", "Chapter 1", "In the beginning God created the heaven and the earth."]
    assert books[-1][-1] == "The grace of our Lord Jesus Christ be with you all. Amen."


def test_corpus_is_the_one_its_readme_describes():
    content = (DATA / "kjv.txt").read_bytes()
    readme = (DATA / "README.md").read_text("utf-8")
    assert hashlib.sha256(content).hexdigest() in readme
    assert f"{len(content):,} bytes" in readme


def script_of(name):
    spec = importlib.util.spec_from_file_location(name, DATA / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


TASKS = {
    "make_tasks": {"chats.jsonl", "preferences.jsonl", "classes.jsonl"},
    "make_numbers": {"numbers.jsonl", "numbers_held_out.jsonl"},
}


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_what_their_script_makes(monkeypatch, name):
    script, made = script_of(name), {}
    monkeypatch.setattr(script, "write", lambda name, records: made.update({name: list(records)}))
    script.make()
    assert made.keys() == TASKS[name]
    for file, records in made.items():
        assert [json.loads(line) for line in (DATA / file).read_text("utf-8").splitlines()] == records


def test_numbers_are_written_as_they_are_said():
    script = script_of("make_numbers")
    known = {
        1: ("one", "eins", "first", "erste", "1st"),
        7: ("seven", "sieben", "seventh", "siebte", "7th"),
        12: ("twelve", "zwölf", "twelfth", "zwölfte", "12th"),
        16: ("sixteen", "sechzehn", "sixteenth", "sechzehnte", "16th"),
        20: ("twenty", "zwanzig", "twentieth", "zwanzigste", "20th"),
        21: ("twenty-one", "einundzwanzig", "twenty-first", "einundzwanzigste", "21st"),
        38: ("thirty-eight", "achtunddreißig", "thirty-eighth", "achtunddreißigste", "38th"),
        100: ("one hundred", "einhundert", "one hundredth", "einhundertste", "100th"),
        101: ("one hundred and one", "einhunderteins", "one hundred and first", "einhunderterste", "101st"),
        113: ("one hundred and thirteen", "einhundertdreizehn", "one hundred and thirteenth", "einhundertdreizehnte", "113th"),
        277: (
            "two hundred and seventy-seven",
            "zweihundertsiebenundsiebzig",
            "two hundred and seventy-seventh",
            "zweihundertsiebenundsiebzigste",
            "277th",
        ),
    }
    for n, words in known.items():
        made = (script.english(n), script.german(n), script.english_ordinal(n), script.german_ordinal(n))
        assert (*made, script.english_digits_ordinal(n)) == words
    for write in (script.english, script.german, script.english_ordinal, script.german_ordinal):
        assert len({write(n) for n in range(1, 1000)}) == 999  # no two numbers are written alike


def test_held_out_compositions_stand_in_no_training_pair():
    """Read back from the words alone: every held-out pair holds a composition that no training pair has in any form."""
    script, read = script_of("make_numbers"), {}
    for n in range(1, 1000):
        for text in (script.english(n), script.german(n), script.english_ordinal(n), script.german_ordinal(n)):
            read[text] = n
        read[str(n)] = read[script.english_digits_ordinal(n)] = n

    def composition_of(record):
        text = record["source"].split(": ", 1)[1]
        if record["group"].startswith("date"):
            digits = text if text[0].isdigit() else record["target"]
            if not digits[0].isdigit():  # from words to words
                months = [names[0 if text.startswith("the") else 1] for names in script.MONTHS]
                _, day, *_, month, _ = text.split(" ")
                return read[day], months.index(month)
            return int(digits[8:]), int(digits[5:7]) - 1
        words = text.rsplit(" ", 1)[0] if record["group"].startswith("measure") else text
        return script.composition(read[words])

    parts = {
        name: [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("numbers", "numbers_held_out")
    }
    seen, kept = (
        {kind: {composition_of(row) for row in rows if row["group"].startswith("date") == kind} for kind in (True, False)}
        for rows in parts.values()
    )
    for kind in (True, False):
        assert None not in kept[kind] and len(kept[kind]) > 30 and len(seen[kind]) > 200
        assert not seen[kind] & kept[kind]
    assert len({row["group"] for row in parts["numbers_held_out"]}) == 24


@pytest.mark.slow
def test_smollm2_is_the_real_model(smollm2):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    assert model.dtype == torch.float32
    assert model.num_parameters() == 134_515_008
    inputs = tokenizer("In the beginning God created the heaven and", return_tensors="pt")
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert tokenizer.decode(output[0]) == "In the beginning God created the heaven and the earth,"
