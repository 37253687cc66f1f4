"""The language of the digits task: questions about one or two images, spelled by templates, and their answers.

Notable here: a question is a choice from each slot of its template; the choices that occur together in held-out questions
never do in training, while each of them alone does, so what is asked of a model is to compose.
"""

from itertools import product

import numpy as np

WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
)
IMAGE = "<image>"
# Where the images stand: before the question, each named, or behind it. `{0}` and `{1}` are the images, `{q}` the question.
LAYOUTS = {
    1: ("{0} {q}", "this : {0} {q}", "{q} here : {0}"),
    2: ("{0} {1} {q}", "first : {0} second : {1} {q}", "{q} first : {0} second : {1}"),
}
_PICTURE, _PICTURES = ("image", "picture", "drawing"), ("images", "pictures", "drawings")
_SAY = ("", "tell me :", "please say :", "question :")
_DIGIT = ("digit", "number")
# kind -> (number of images, slots); a slot is a tuple of choices, and `{d}` a digit that the question names
TEMPLATES = {
    "digit": (1, (_SAY, ("what", "which"), _DIGIT, ("does this",), _PICTURE, ("show", "contain"))),
    "count": (2, (_SAY, ("how many",), _PICTURES, ("show a {d}", "contain a {d}", "are a {d}"))),
    "larger": (2, (_SAY, ("which",), _PICTURE, ("shows", "has"), ("the larger", "the greater"), _DIGIT)),
    "same": (2, (_SAY, ("do both", "do the two"), _PICTURES, ("show", "contain"), ("the same", "an equal"), _DIGIT)),
    "sum": (2, (_SAY, ("what is",), ("the sum", "the total"), ("of both", "of the two"), ("digits", "numbers", *_PICTURES))),
}
ANSWERS = {
    "digit": lambda digits, named: WORDS[digits[0]],
    "count": lambda digits, named: WORDS[sum(digit == named for digit in digits)],
    "larger": lambda digits, named: ("neither", "first", "second")[(digits[0] != digits[1]) + (digits[1] > digits[0])],
    "same": lambda digits, named: "yes" if digits[0] == digits[1] else "no",
    "sum": lambda digits, named: WORDS[sum(digits)],
}
PROMPT_END = "? answer :"


def phrasings(kind, held_out, seed):
    """(training, held-out) questions of a kind: each a string, in which `{d}` is a named digit.

    Args:
        held_out: share of the combinations that is held out, as far as every choice of a slot stays in training with at least
            two others.
        seed: decides which.
    """
    slots = TEMPLATES[kind][1]
    combinations = list(product(*(range(len(slot)) for slot in slots)))
    order = np.random.default_rng([seed, list(TEMPLATES).index(kind)]).permutation(len(combinations))
    uses = [[sum(c[place] == choice for c in combinations) for choice in range(len(slot))] for place, slot in enumerate(slots)]
    wanted, out = round(held_out * len(combinations)), set()
    for index in order:
        chosen = combinations[index]
        free = [place for place, slot in enumerate(slots) if len(slot) > 1]
        if len(out) < wanted and all(uses[place][chosen[place]] > 2 for place in free):
            out.add(chosen)
            for place in free:
                uses[place][chosen[place]] -= 1
    spelled = {True: [], False: []}
    for combination in combinations:
        parts = [slot[choice] for slot, choice in zip(slots, combination, strict=True)]
        spelled[combination in out].append(" ".join(part for part in parts if part))
    return spelled[False], spelled[True]


def vocabulary():
    """Every word that a prompt or an answer can hold, in a fixed order."""
    texts = [*WORDS, "first second neither yes no", PROMPT_END]
    texts += [layout for layouts in LAYOUTS.values() for layout in layouts]
    texts += [choice for _, slots in TEMPLATES.values() for slot in slots for choice in slot]
    words = " ".join(texts).split()
    return list(dict.fromkeys(word for word in words if not word.startswith("{")))
