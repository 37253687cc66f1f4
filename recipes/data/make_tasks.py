"""Writes the shipped fine-tuning examples, chats.jsonl, preferences.jsonl and classes.jsonl, from kjv.txt.

python recipes/data/make_tasks.py     # from any directory; the same files each time
"""

import json
import random
import re
from pathlib import Path

FOLDER = Path(__file__).parent
# books by their number, from Genesis = 0
KINDS = {
    "law": range(0, 5),
    "history": range(5, 17),
    "poetry": range(17, 22),
    "prophecy": range(22, 39),
    "gospel": range(39, 43),
    "letter": range(44, 65),
}


def verses():
    """[(number of the book, verse, the verse after it)] of middle length that divide at a comma, colon or semicolon."""
    found = []
    for number, book in enumerate((FOLDER / "kjv.txt").read_text(encoding="utf-8").split("\n\n")):
        lines = [line for line in book.strip().split("\n")[1:] if not re.fullmatch(r"Chapter \d+", line)]
        pairs = zip(lines, lines[1:], strict=False)
        found += [(number, *pair) for pair in pairs if 60 <= len(pair[0]) <= 160 and len(pair[1]) <= 160]
    return found


def halves(verse):
    """A verse cut behind the mark that is nearest to its middle, or None."""
    marks = [match.end() for match in re.finditer(r"[,;:] ", verse) if 20 <= match.end() <= len(verse) - 20]
    cut = min(marks, key=lambda place: abs(place - len(verse) // 2), default=None)
    return None if cut is None else (verse[:cut].strip(), verse[cut:].strip())


def chats(pool, count):
    for index, (_, verse, following) in enumerate(pool[:count]):
        first, second = halves(verse)
        messages = [message("user", f"Continue: {first}"), message("assistant", second)]
        if index % 4 == 0:
            messages += [message("user", "And then?"), message("assistant", following)]
        yield {"messages": messages}


def preferences(pool, count, draw):
    for _, verse, _ in pool[:count]:
        first, second = halves(verse)
        other = halves(draw.choice(pool)[1])[1]
        if other != second:
            prompt = [message("user", f"Continue: {first}")]
            yield {"prompt": prompt, "chosen": [message("assistant", second)], "rejected": [message("assistant", other)]}


def classes(pool, count):
    for kind, books in KINDS.items():
        chosen = [verse for number, verse, _ in pool if number in books][: count // len(KINDS)]
        yield from ({"text": verse, "label": kind} for verse in chosen)


def message(role, content):
    return {"role": role, "content": content}


def write(name, records):
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (FOLDER / name).write_text(text, encoding="utf-8")


def make():
    draw = random.Random(0)
    pool = [entry for entry in verses() if halves(entry[1])]
    draw.shuffle(pool)
    write("chats.jsonl", chats(pool, 1000))
    write("preferences.jsonl", preferences(pool[1000:], 800, draw))
    write("classes.jsonl", classes(pool[1800:], 1500))


if __name__ == "__main__":
    make()
