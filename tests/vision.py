"""Tiny vision-language models for tests of any room.

`vlm(text, **keys)` gives a randomised `VariantsForImageTextToText` over a text toggle; images are 12 x 12 pixels, 9 patches;
`row(model, 1, IMAGE, 2)` spells a row of ids with the placeholders that its image needs.
"""

import torch

from hf_variants import VariantsForImageTextToText, VariantsVisionConfig
from tests.towers import native_config, pixels
from tests.variants import randomise, tiny

IMAGE = "image"
IMAGE_ID = 60
GATED = {"bridge": "gated_cross_attention"}
BRIDGES = {
    "projection": {},
    "bidirectional": {"image_attention": "bidirectional"},
    "gated": GATED,
    "gated_all": {**GATED, "cross_attention_scope": "all", "cross_attention_mlp": True, "cross_attention_layers": [1]},
}


def vision_config(text="gqa", tower="siglip_vision_model", text_keys=(), **keys):
    """The config over the text toggle `text`; `tower` a type of `tests.towers` or a config."""
    tower = native_config(tower) if isinstance(tower, str) else tower
    text = tiny(text, **dict(text_keys))
    return VariantsVisionConfig(**{"text_config": text, "vision_config": tower, "image_token_id": IMAGE_ID, **keys})


def vlm(text="gqa", tower="siglip_vision_model", backend="sdpa", text_keys=(), seed=0, **keys):
    config = vision_config(text, tower, text_keys, **keys)
    config._attn_implementation = backend
    return randomise(VariantsForImageTextToText(config), seed).eval()


def row(model, *parts):
    """Ids of one row: numbers stand for themselves, `IMAGE` for the placeholders of an image."""
    count = model.config.tokens_of_image()
    return [token for part in parts for token in ([IMAGE_ID] * count if part == IMAGE else [part])]


def batch(model, *rows, side="left"):
    """`input_ids` and `attention_mask` of rows of parts, padded on one side, and the pixels of their images."""
    spelled = [row(model, *parts) for parts in rows]
    longest = max(len(ids) for ids in spelled)
    pads = [[0] * (longest - len(ids)) for ids in spelled]
    left = side == "left"
    ids = [pad + ids if left else ids + pad for pad, ids in zip(pads, spelled, strict=True)]
    mask = [pad + [1] * len(ids) if left else [1] * len(ids) + pad for pad, ids in zip(pads, spelled, strict=True)]
    found = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    count = sum(part == IMAGE for parts in rows for part in parts)
    return {**found, "pixel_values": pixels(count)} if count else found


MIXED = ((1, 2, IMAGE, 3, 4, IMAGE, 5), (6, 7, 8, 9), (IMAGE, 10, 11, 12), (13,))


def each_alone(inputs, counts):
    """The rows of a left-padded batch, each without its pads and with its own images."""
    start = 0
    for index, count in enumerate(counts):
        kept = inputs["attention_mask"][index].bool()
        alone = {"input_ids": inputs["input_ids"][index : index + 1, kept]}
        if count:
            alone["pixel_values"] = inputs["pixel_values"][start : start + count]
        start += count
        yield index, kept, alone
