"""Write the task of the seq2seq recipe: numbers, ordinals, measures and dates between English, German and digits.

python recipes/data/make_numbers.py    # numbers.jsonl and numbers_held_out.jsonl beside this file, the same each time

Notable here: some pairs of hundreds and rest (3 and 47) and some pairs of day and month stand in no training example, in
whatever language, form or direction; every held-out example holds one of them, so it must be put together from its parts.
"""

import json
import os
import random
from pathlib import Path

FOLDER = Path(__file__).parent
SEED, HELD_OUT_SHARE = 0, 0.15
TRAINING, HELD_OUT = 12_000, 600
FORMS = ("en", "de", "digits")
DIRECTIONS = [(source, target) for source in FORMS for target in FORMS if source != target]

EN_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
EN_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
EN_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
DE_SMALL = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
).split()
DE_TENS = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
DE_ORDINALS = {"eins": "erste", "drei": "dritte", "sieben": "siebte", "acht": "achte"}
MONTHS = [
    ("January", "Januar"),
    ("February", "Februar"),
    ("March", "März"),
    ("April", "April"),
    ("May", "Mai"),
    ("June", "Juni"),
    ("July", "Juli"),
    ("August", "August"),
    ("September", "September"),
    ("October", "Oktober"),
    ("November", "November"),
    ("December", "Dezember"),
]
UNITS = [
    ("metres", "Meter", "m"),
    ("kilometres", "Kilometer", "km"),
    ("kilograms", "Kilogramm", "kg"),
    ("litres", "Liter", "l"),
    ("hours", "Stunden", "h"),
    ("minutes", "Minuten", "min"),
]


def english(n):
    """A whole number below 1,000 in English words."""
    if n >= 100:
        return f"{EN_SMALL[n // 100]} hundred" + (f" and {english(n % 100)}" if n % 100 else "")
    if n < 20:
        return EN_SMALL[n]
    return EN_TENS[n // 10] + (f"-{EN_SMALL[n % 10]}" if n % 10 else "")


def english_ordinal(n):
    words = english(n)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[cut:]
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return words[:cut] + EN_ORDINALS.get(last, regular)


def german(n):
    """A whole number below 1,000 in German words."""
    if n >= 100:
        return f"{_one(DE_SMALL[n // 100])}hundert" + (german(n % 100) if n % 100 else "")
    if n < 20:
        return DE_SMALL[n]
    return (f"{_one(DE_SMALL[n % 10])}und" if n % 10 else "") + DE_TENS[n // 10]


def german_ordinal(n):
    words = german(n)
    if not 0 < n % 100 < 20:
        return f"{words}ste"
    last = DE_SMALL[n % 100]
    return words.removesuffix(last) + DE_ORDINALS.get(last, f"{last}te")


def _one(word):
    return "ein" if word == "eins" else word


def english_digits_ordinal(n):
    ending = "th" if 10 < n % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def composition(n):
    """The pair of hundreds and rest that a number is put together from, or None where one of them is zero."""
    return divmod(n, 100) if n > 100 and n % 100 else None


def numbers(held, held_out, draw):
    """A number, of as many digits as chance has it, that holds a held-out composition or does not."""
    while True:
        n = draw.randrange(1, 10 ** draw.choice((2, 3, 3, 3)))
        if (composition(n) in held) == held_out:
            return n


def cardinal(held, held_out, draw):
    n = numbers(held["numbers"], held_out, draw)
    return {"en": english(n), "de": german(n), "digits": str(n)}


def ordinal(held, held_out, draw):
    n = numbers(held["numbers"], held_out, draw)
    return {"en": english_ordinal(n), "de": german_ordinal(n), "digits": english_digits_ordinal(n)}


def measure(held, held_out, draw):
    # German numbers that end in one bend with the noun behind them
    while (n := numbers(held["numbers"], held_out, draw)) % 100 == 1:
        pass
    unit = draw.choice(UNITS)
    return {"en": f"{english(n)} {unit[0]}", "de": f"{german(n)} {unit[1]}", "digits": f"{n} {unit[2]}"}


def date(held, held_out, draw):
    day, month = draw.randrange(1, 29), draw.randrange(12)
    while ((day, month) in held["days"]) != held_out:
        day, month = draw.randrange(1, 29), draw.randrange(12)
    year, (en, de) = draw.randrange(1900, 2030), MONTHS[month]
    return {
        "en": f"the {english_ordinal(day)} of {en} {year}",
        "de": f"der {german_ordinal(day)} {de} {year}",
        "digits": f"{year}-{month + 1:02}-{day:02}",
    }


KINDS = {"cardinal": cardinal, "ordinal": ordinal, "measure": measure, "date": date}


def held_out_compositions(draw):
    """{"numbers": pairs of hundreds and rest, "days": pairs of day and month} that training never sees."""
    pairs = {
        "numbers": [(hundreds, rest) for hundreds in range(1, 10) for rest in range(1, 100)],
        "days": [(day, month) for day in range(1, 29) for month in range(12)],
    }
    return {name: set(draw.sample(options, round(HELD_OUT_SHARE * len(options)))) for name, options in pairs.items()}


def examples(count, held, held_out, draw):
    """`count` different records {source, target, group}."""
    found = {}
    while len(found) < count:
        kind, (source, target) = draw.choice(list(KINDS)), draw.choice(DIRECTIONS)
        forms = KINDS[kind](held, held_out, draw)
        text = f"{source} to {target}: {forms[source]}"
        found[text] = {"source": text, "target": forms[target], "group": f"{kind}, {source} to {target}"}
    return list(found.values())


def write(name, records):
    partial = FOLDER / f"{name}.partial-{os.getpid()}"
    partial.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    os.replace(partial, FOLDER / name)


def make():
    draw = random.Random(SEED)
    held = held_out_compositions(draw)
    write("numbers.jsonl", examples(TRAINING, held, False, draw))
    write("numbers_held_out.jsonl", examples(HELD_OUT, held, True, draw))


if __name__ == "__main__":
    make()
