"""What is measured while a vision-language model trains, and behind it: alignment with words, attention to images, cost."""

import torch

from ..diagnostics import alignment, image_attention
from .batches import MEAN, STD, QuestionCollator
from .digits import DIGITS, enlarge
from .questions import WORDS


def alignment_measure(model, tokenizer, images, side, count=200):
    """() -> numbers of `diagnostics.alignment`, of `count` images against the embeddings of the names of their digits.

    The delimiters of an image are left out. Every call reads the weights as they are then.
    """
    chosen = slice(0, None, max(len(images.labels) // count, 1))
    pixels = (enlarge(images.pixels[chosen], side) - MEAN) / STD
    labels = torch.as_tensor(images.labels[chosen])
    ids = torch.tensor(tokenizer.convert_tokens_to_ids(list(WORDS[:DIGITS])))

    @torch.no_grad()
    def measure():
        read = torch.stack(model.model.get_image_features(pixels.to(model.device))).cpu()
        read = read[:, 1:-1] if model.config.image_delimiters else read
        table = model.get_input_embeddings()
        words, every = (table(rows.to(model.device)).cpu() for rows in (ids, torch.arange(len(tokenizer))))
        return alignment(read, words, every, labels)

    return measure


def attention_readings(model, tokenizer, examples, images, side):
    """`diagnostics.image_attention` of a batch of examples, as plain data."""
    collate = QuestionCollator(tokenizer, images, side, model.config.tokens_of_image(), answered=False)
    inputs = {name: value.to(model.device) for name, value in collate(list(enumerate(examples))).items()}
    return [reading.as_dict() for reading in image_attention(model, inputs)]
