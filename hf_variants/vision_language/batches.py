"""Questions as batches: ids with the placeholders of the images, labels on the answer alone, pixels of the images.

Notable here: rows are padded on the left, so that what answers is the last column; jiggled images are a function of the seed
and the number of the first question, so that a batch is the same whenever it is made.
"""

import torch

from .digits import enlarge, jiggle
from .examples import QuestionMaker
from .questions import IMAGE

IGNORE = -100
# What grey levels from 0 to 1 become; the processor of the recipe says the same.
MEAN, STD = 0.5, 0.5


class Questions(torch.utils.data.Dataset):
    """`count` numbered examples of a `QuestionMaker`, from number `start` on, as (number, example)."""

    def __init__(self, maker, count, start=0):
        self.maker, self.count, self.start = maker, count, start

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.start + index, self.maker[self.start + index]


class QuestionCollator:
    """Makes batches of numbered examples.

    Args:
        tokenizer: of whole words.
        images: the `Images` that the examples are about.
        side: pixels of an image that the tower reads.
        tokens_of_image: placeholders per image. Of questions in words, a name stands that often too, so that a language
            model finds everything at the distances that it will have.
        reads: as `PhaseSpec.reads`.
        jiggled: whether images are changed a little; seed: of that.
        answered: whether rows hold the answer, with labels; or end where it would begin.
    """

    def __init__(self, tokenizer, images, side, tokens_of_image, reads="images", jiggled=False, seed=0, answered=True):
        self.tokenizer, self.reads, self.jiggled, self.seed, self.answered = tokenizer, reads, jiggled, seed, answered
        self.pixels = enlarge(images.pixels, side)
        self.tokens_of_image = tokens_of_image

    def __call__(self, numbered):
        examples = [example for _, example in numbered]
        if self.reads == "labels":
            digits = torch.tensor([digit for example in examples for digit in example.digits])
            return {"pixel_values": self.pixels_of(numbered), "labels": digits}
        batch = self.rows_of(examples)
        return batch if self.reads == "words" else {**batch, "pixel_values": self.pixels_of(numbered)}

    def rows_of(self, examples):
        """input_ids, attention_mask and, where answered, labels of the questions."""
        prompts = [
            example.in_words(self.tokens_of_image)
            if self.reads == "words"
            else example.prompt.replace(IMAGE, IMAGE * self.tokens_of_image)
            for example in examples
        ]
        rows, answers = self.tokenizer(prompts)["input_ids"], [[] for _ in examples]
        if self.answered:
            eos = self.tokenizer.eos_token_id
            answers = [[self.tokenizer.convert_tokens_to_ids(example.answer), eos] for example in examples]
        length = max(len(row) + len(answer) for row, answer in zip(rows, answers, strict=True))
        pad, filled = self.tokenizer.pad_token_id, {"input_ids": [], "attention_mask": [], "labels": []}
        for row, answer in zip(rows, answers, strict=True):
            empty = length - len(row) - len(answer)
            filled["input_ids"].append([pad] * empty + row + answer)
            filled["attention_mask"].append([0] * empty + [1] * (length - empty))
            filled["labels"].append([IGNORE] * (empty + len(row)) + answer)
        if not self.answered:
            del filled["labels"]
        return {name: torch.tensor(value) for name, value in filled.items()}

    def pixels_of(self, numbered):
        """pixel_values of the images of numbered examples, in reading order."""
        pixels = self.pixels[[image for _, example in numbered for image in example.images]]
        if self.jiggled:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + numbered[0][0])
            pixels = jiggle(pixels, generator)
        return (pixels - MEAN) / STD


def maker_of(spec, images, held_out_phrases, seed, kinds=None):
    """The `QuestionMaker` of a recipe."""
    data = spec.data
    kinds = data.kinds if kinds is None else kinds
    return QuestionMaker(images, held_out_phrases, data.held_out_phrases, data.split_seed, kinds, seed)
