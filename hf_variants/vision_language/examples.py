"""Examples of the digits task: question, images, answer, each a function of a seed and its number.

Notable here: example i is drawn from (seed, i) alone, so that any worker, order or restart sees the same ones; kinds and
answers are balanced where chance would not balance them; the twin of an example in words has the names of the digits in place
of the images.
"""

from dataclasses import dataclass

import numpy as np

from .questions import ANSWERS, IMAGE, LAYOUTS, PROMPT_END, TEMPLATES, WORDS, phrasings

KINDS = tuple(TEMPLATES)


@dataclass(frozen=True)
class Example:
    """One question.

    Attributes:
        kind: a key of `questions.TEMPLATES`.
        prompt: the question with `<image>` where an image stands, up to the answer.
        answer: one word.
        digits: what the images show, in order.
        images: indices of the images.
    """

    kind: str
    prompt: str
    answer: str
    digits: tuple
    images: tuple

    def in_words(self, times=1):
        """The prompt with the name of its digit in place of each image, as many times as an image has tokens."""
        prompt = self.prompt
        for digit in self.digits:
            prompt = prompt.replace(IMAGE, " ".join([WORDS[digit]] * times), 1)
        return prompt


class QuestionMaker:
    """Draws examples.

    Args:
        images: an `Images`.
        held_out_phrases: whether the questions are those whose combinations of phrases are held out, or those of training.
        share: share of the combinations that is held out. phrase_seed: decides which.
        kinds: the kinds to draw from, each equally often.
        seed: of the examples.

    Raises:
        ValueError: for an unknown kind or none.
    """

    def __init__(self, images, held_out_phrases, share=0.25, phrase_seed=0, kinds=KINDS, seed=0):
        unknown = [kind for kind in kinds if kind not in TEMPLATES]
        if unknown or not kinds:
            raise ValueError(f"kinds={list(kinds)} must be some of {list(KINDS)}")
        self.images, self.kinds, self.seed = images, tuple(kinds), seed
        self.questions = {kind: phrasings(kind, share, phrase_seed)[int(held_out_phrases)] for kind in self.kinds}
        self.of_digit = [images.of_digit(digit) for digit in range(len(np.unique(images.labels)))]

    def __getitem__(self, index):
        """Example number `index`."""
        generator = np.random.default_rng([self.seed, index])
        kind = self.kinds[index % len(self.kinds)]
        digits, named = _draw_digits(kind, generator)
        question = self._pick(self.questions[kind], generator)
        layout = self._pick(LAYOUTS[len(digits)], generator)
        question = question.replace("{d}", WORDS[named])
        prompt = layout.format(*[IMAGE] * len(digits), q=question)
        images = tuple(int(self._pick(self.of_digit[digit], generator)) for digit in digits)
        return Example(kind, f"{prompt} {PROMPT_END}", ANSWERS[kind](digits, named), digits, images)

    def take(self, count, start=0):
        """Examples `start` to `start + count - 1`."""
        return [self[index] for index in range(start, start + count)]

    @staticmethod
    def _pick(choices, generator):
        return choices[int(generator.integers(len(choices)))]


def _draw_digits(kind, generator):
    """(digits of the images, digit that the question names), with rare answers drawn more often than by chance."""
    first, second, named = (int(digit) for digit in generator.integers(10, size=3))
    chance = generator.random()
    if kind == "digit":
        return (first,), named
    if kind == "same" and chance < 0.5 or kind == "larger" and chance < 0.2:
        second = first
    if kind == "count":
        # none, one or both of the images show the digit
        first, second = ((first, second), (named, second), (first, named), (named, named))[int(chance * 4)]
    return (first, second), named
