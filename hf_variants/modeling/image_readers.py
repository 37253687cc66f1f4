"""How a bridge brings images to the language model: in the row of its tokens, or by cross-attention beside it."""

from functools import partial
from typing import NamedTuple

import torch
from transformers.cache_utils import Cache
from transformers.utils.import_utils import is_tracing

from .gated_cross_attention import ImageCache
from .image_inputs import images_per_row
from .image_memory import view_images
from .kv_cache import fit_cache


class Call(NamedTuple):
    """What a call of `VariantsVisionModel` brings: its arguments, with images as lists of [tokens, hidden]."""

    input_ids: torch.Tensor
    images: list | None
    image_counts: torch.Tensor | None
    cache: Cache | None
    attention_mask: torch.Tensor | dict | None
    position_ids: torch.Tensor | None


def place_in_row(model, call):
    """Embeddings [B, T, H] of a row of text in which image tokens stand for the features of images, in reading order."""
    is_image = call.input_ids == model.config.image_token_id
    # an image token may lie outside of the vocabulary; what is looked up for it is replaced
    embeds = model.get_input_embeddings()(call.input_ids.masked_fill(is_image, 0))
    if not is_tracing(call.input_ids):
        lengths = [] if call.images is None else [len(image) for image in call.images]
        images_per_row(is_image.sum(dim=1).tolist(), lengths, call.image_counts)
    if call.images is not None:
        features = torch.cat(call.images).to(embeds.device, embeds.dtype)
        embeds = embeds.masked_scatter(is_image.unsqueeze(-1), features)
    return embeds, {}


def look_across(model, call):
    """Embeddings [B, T, H] of the text alone, and gated cross-attentions to the images before each token."""
    config, input_ids, cache = model.config, call.input_ids, call.cache
    is_image = input_ids == config.image_token_id
    counts = None
    if call.images is not None or not is_tracing(input_ids):
        lengths = [] if call.images is None else [1] * len(call.images)
        counts = images_per_row(is_image.sum(dim=1).tolist(), lengths, call.image_counts)
    embeds = model.get_input_embeddings()(input_ids)
    mask = call.attention_mask
    visible = mask[:, -input_ids.shape[1] :] if isinstance(mask, torch.Tensor) and mask.dim() == 2 else None
    blocks = model.cross_layers
    shape = config.cross_attention_scope, cache, config.text_config.num_hidden_layers, len(blocks)
    fit_cache(cache, *model.language_model.windows)
    images = None if call.images is None else [image.to(embeds.device, embeds.dtype) for image in call.images]
    view = view_images(is_image, images, counts, *shape, call.position_ids, visible)
    if view is None:
        return embeds, {}
    layers = [None] * len(blocks)
    if view.layers is not None:
        layers = [ImageCache(layer, int(index)) for layer, index in zip(view.layers, blocks, strict=True)]
    return embeds, {
        "insertions": {
            int(index): partial(look, block, view, layer) for (index, block), layer in zip(blocks.items(), layers, strict=True)
        }
    }


def look(block, view, layer, hidden_states):
    # by position: what is handed to a checkpointed module by name would get no gradient
    return block(hidden_states, view.states, view.sees, view.mask, layer)


# bridge -> (model, `Call`) -> embeddings, further arguments of the language model
READERS = {"projection": place_in_row, "gated_cross_attention": look_across}
# bridge -> width of what images become
WIDTHS = {"projection": lambda text: text.embedding_size, "gated_cross_attention": lambda text: text.hidden_size}
