"""The digits task: what is held out stays out, answers are right, and every example is a function of its number."""

from collections import Counter

import numpy as np
import pytest
import torch

from hf_variants.vision_language.digits import enlarge, jiggle, load_digits, to_picture
from hf_variants.vision_language.examples import KINDS, QuestionMaker
from hf_variants.vision_language.questions import IMAGE, TEMPLATES, WORDS, phrasings, vocabulary
from hf_variants.vision_language.words import word_tokenizer


@pytest.fixture(scope="module")
def split():
    return load_digits(0.2, seed=0)


def rows(images):
    return {pixels.tobytes() + bytes([label]) for pixels, label in zip(images.pixels, images.labels, strict=True)}


def test_images_are_split_by_digit_and_by_seed(split):
    train, out = split
    assert len(train.labels) + len(out.labels) == 1797
    assert not rows(train) & rows(out)
    counts = Counter(out.labels.tolist())
    assert min(counts.values()) >= 34 and max(counts.values()) <= 37
    again, other = load_digits(0.2, seed=0), load_digits(0.2, seed=1)
    assert np.array_equal(again[1].pixels, out.pixels) and rows(other[1]) != rows(out)
    assert 0 <= train.pixels.min() and train.pixels.max() == 1.0
    with pytest.raises(ValueError, match="held_out=0.999 holds out 178 of the 178 images of the digit 0"):
        load_digits(0.999)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_held_out_phrases_are_new_combinations_of_known_choices(kind, seed):
    train, out = phrasings(kind, 0.25, seed)
    every = np.prod([len(slot) for slot in TEMPLATES[kind][1]])
    assert len(set(train) | set(out)) == len(train) + len(out) == every
    assert len(out) == round(0.25 * every)
    words = lambda texts: {word for text in texts for word in text.split()}  # noqa: E731
    assert words(out) <= words(train)
    assert phrasings(kind, 0.25, seed) == (train, out)


def expected(example, question):
    """The answer by reading the question, not by the table that made it."""
    digits = example.digits
    if example.kind == "count":
        named = next(word for word in reversed(question.split()) if word in WORDS)
        return WORDS[[WORDS[digit] for digit in digits].count(named)]
    if example.kind == "larger":
        return "neither" if digits[0] == digits[1] else ["second", "first"][digits[0] > digits[1]]
    if example.kind == "same":
        return ["no", "yes"][len(set(digits)) == 1]
    return WORDS[sum(digits)]


@pytest.mark.parametrize("held_out", [True, False])
def test_examples_are_right_and_about_their_own_images(split, held_out):
    images = split[int(held_out)]
    maker, found = QuestionMaker(images, held_out, seed=3), Counter()
    for example in maker.take(400):
        count = TEMPLATES[example.kind][0]
        assert example.prompt.count(IMAGE) == len(example.images) == len(example.digits) == count
        assert tuple(images.labels[list(example.images)]) == example.digits
        assert example.answer == expected(example, example.prompt)
        pieces = example.prompt.split(IMAGE)
        names = [WORDS[digit] for digit in example.digits]
        assert example.in_words() == "".join(a + b for a, b in zip(pieces, [*names, ""], strict=True))
        assert example.in_words(3).split().count(names[0]) >= 3
        found[example.kind, example.answer] += 1
    assert {kind for kind, _ in found} == set(KINDS)
    for kind in ("same", "larger", "count"):
        shares = [count for (name, _), count in found.items() if name == kind]
        assert len(shares) == {"same": 2, "larger": 3, "count": 3}[kind] and min(shares) >= 10


def test_examples_are_functions_of_seed_and_number(split):
    maker = QuestionMaker(split[0], False, seed=3)
    assert maker.take(5, start=7)[2] == maker[9] == QuestionMaker(split[0], False, seed=3)[9]
    assert QuestionMaker(split[0], False, seed=4)[9] != maker[9]
    with pytest.raises(ValueError, match=r"kinds=\['colour'\] must be some of"):
        QuestionMaker(split[0], False, kinds=["colour"])


@pytest.mark.slow
def test_no_training_question_is_a_held_out_one(split):
    seen = {QuestionMaker(split[0], False, seed=1)[i].prompt for i in range(2000)}
    assert not seen & {QuestionMaker(split[0], True, seed=1)[i].prompt for i in range(2000)}


def test_every_word_is_known_to_the_tokenizer(split):
    tokenizer = word_tokenizer()
    assert len(tokenizer) == len(set(vocabulary())) + 5
    for held_out in (False, True):
        for example in QuestionMaker(split[0], held_out, seed=5).take(200):
            text = f"{example.prompt.replace(IMAGE, IMAGE * 3)} {example.answer}"
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.unk_token_id not in ids and ids[0] == tokenizer.bos_token_id
            assert ids.count(tokenizer.convert_tokens_to_ids(IMAGE)) == 3 * len(example.images)
            assert len(tokenizer(example.answer, add_special_tokens=False)["input_ids"]) == 1
    assert tokenizer("what elephant")["input_ids"][-1] == tokenizer.unk_token_id


def test_jiggling_keeps_the_seed_and_moves_the_image(split):
    images = enlarge(split[0].pixels[:5], 16)
    assert images.shape == (5, 1, 16, 16)
    moved = [jiggle(images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(moved[0], moved[1]) and not torch.equal(moved[0], moved[2])
    assert moved[0].shape == images.shape and (moved[0] - images).abs().max() > 0.05
    none = {"turn": 0, "stretch": 0, "shift": 0, "shear": 0, "warp": 0}
    still = jiggle(images, torch.Generator().manual_seed(1), **none)
    torch.testing.assert_close(still, images, atol=1e-5, rtol=0)
    for name in none:
        alone = jiggle(images, torch.Generator().manual_seed(1), **{**none, name: 0.3})
        assert (alone - images).abs().max() > 0.05, name
        assert abs(alone.mean() / images.mean() - 1) < 0.3, name
    assert to_picture(split[0].pixels[0], 16).size == (16, 16)
