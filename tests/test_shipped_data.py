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


def test_tasks_are_what_their_script_makes_of_the_corpus(monkeypatch):
    spec = importlib.util.spec_from_file_location("make_tasks", DATA / "make_tasks.py")
    script, made = importlib.util.module_from_spec(spec), {}
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "write", lambda name, records: made.update({name: list(records)}))
    script.make()
    assert made.keys() == {"chats.jsonl", "preferences.jsonl", "classes.jsonl"}
    for name, records in made.items():
        assert [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()] == records
        assert f"| {name} | {len(records):,} |" in (DATA / "README.md").read_text("utf-8")


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
