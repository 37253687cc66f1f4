"""Answers of a model to questions about images, as a user would get them: pictures and text through the processor, greedy
generation, the text behind the prompt.
"""

import torch

from .digits import enlarge, to_picture

SPLITS = {
    "held-out images, held-out phrases": (True, True),
    "held-out images, training phrases": (True, False),
    "training images, held-out phrases": (False, True),
}
MAX_NEW_TOKENS = 4


def pictures_of(images, side):
    """PIL images of `side` pixels of `Images`, one per image."""
    return [to_picture(pixels[0]) for pixels in enlarge(images.pixels, side).numpy()]


@torch.no_grad()
def answers(model, processor, examples, pictures, batch_size=100):
    """The answer to each example, a string: what is generated behind its prompt, greedily, without special tokens.

    Args:
        pictures: PIL images, by the numbers that the examples hold.
    """
    found = []
    for start in range(0, len(examples), batch_size):
        part = examples[start : start + batch_size]
        inputs = processor(
            images=[pictures[index] for example in part for index in example.images],
            text=[example.prompt for example in part],
            padding=True,
            return_tensors="pt",
        ).to(model.device)
        ids = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        new = ids[:, inputs["input_ids"].shape[1] :]
        found.extend(text.strip() for text in processor.batch_decode(new, skip_special_tokens=True))
    return found


def accuracies(examples, given):
    """{"all": share of right answers, kind: ..., "answers": how many there are}; an answer is right as a whole."""
    right = {}
    for example, answer in zip(examples, given, strict=True):
        right.setdefault(example.kind, []).append(answer == example.answer)
    every = [value for values in right.values() for value in values]
    return {"all": sum(every) / len(every), **{kind: sum(v) / len(v) for kind, v in right.items()}, "answers": len(every)}
