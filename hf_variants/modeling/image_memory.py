"""Where text finds images that it reads by cross-attention: which images each token sees, and what a cache keeps of them.

Notable here: keys and values of images are cache layers of their own behind those of the tokens, so beams reorder them and a
reset drops them, while cropping tokens leaves them alone. What a row may see is counted per row and per document.
"""

from typing import NamedTuple

import torch
from transformers.cache_utils import DynamicLayer
from transformers.utils.import_utils import is_tracing

from .kv_cache import add_image_layers, image_layers
from .masks import documents_of


class ImageLayer(DynamicLayer):
    """Keys and values of images; of the first such layer, the image number of each state [B, 1, S, 1] (0 for none)."""

    holds_images = True
    is_compileable = True

    def crop(self, tokens_to_remove):
        return None


class ImageView(NamedTuple):
    """What the tokens of a call see of images.

    states: [B, S, width] of the images that came with the call, or None; mask: boolean [B, 1, T, S in all], or None where
    there are none; sees: [B, T, 1], false at tokens that see none; layers: the cache layers of keys and values, one per
    cross-attention, or None where nothing is cached; filled: whether they hold `states` already.
    """

    states: torch.Tensor | None
    mask: torch.Tensor
    sees: torch.Tensor
    layers: list | None


def view_images(is_image, images, counts, scope, cache, num_layers, num_blocks, position_ids=None, visible=None):
    """The `ImageView` of a call, or None where no token can see an image; writes image numbers to `cache`.

    Args:
        is_image: [B, T], true at the placeholder of an image, one per image, which sees it too.
        images: list of [tokens, width] in reading order, or None.
        counts: images per row.
        scope: a key of `VISION_CHOICES["cross_attention_scope"]`.
        cache: a `Cache` or None; num_layers, num_blocks: layers of the text, and cross-attentions among them.
        position_ids: [B, T] or None; where they start again a new document starts, which sees its own images alone.
        visible: [B, T], false at pads, or None.
    """
    layers = None if cache is None else image_layers(cache)
    known = layers[0].keys[:, 0, :, 0].long() if layers and layers[0].is_initialized else None
    if images is None and known is None:
        return None
    documents = _documents(is_image, position_ids, visible, cache)
    states, rows, places = None, None, None
    if images is not None:
        states, rows, places = _by_row(images, counts, is_image, documents)
    seen = 0 if known is None else known.amax(dim=1, keepdim=True)
    numbers = is_image.long().cumsum(dim=1) + seen
    of_states = [] if known is None else [known]
    documents_of_states = [] if known is None else [torch.zeros_like(known)]
    if rows is not None:
        of_states.append(torch.where(rows > 0, rows + seen, 0))
        documents_of_states.append(places)
    of_states, documents_of_states = torch.cat(of_states, dim=1), torch.cat(documents_of_states, dim=1)
    mask = SCOPES[scope](numbers.unsqueeze(2), of_states.unsqueeze(1)) & (of_states > 0).unsqueeze(1)
    mask = mask & (documents.unsqueeze(2) == documents_of_states.unsqueeze(1))
    if cache is not None:
        layers = layers or add_image_layers(cache, num_layers, [ImageLayer() for _ in range(num_blocks + 1)])
        if not is_tracing(is_image):
            _write_numbers(layers[0], torch.where(documents_of_states == documents[:, -1:], of_states, 0))
        layers = layers[1:]
    return ImageView(states, mask.unsqueeze(1), mask.any(dim=2).unsqueeze(-1), layers)


def last_image(numbers, of_states):
    return numbers == of_states


def every_image(numbers, of_states):
    return numbers >= of_states


# cross_attention_scope -> (images before each token, image of each state) -> whether the token sees the state
SCOPES = {"last": last_image, "all": every_image}


def _documents(is_image, position_ids, visible, cache):
    """Document of each new token, [B, T]; that of the cached tokens is 0."""
    if position_ids is None:
        return torch.zeros_like(is_image, dtype=torch.long)
    position_ids = position_ids.expand(is_image.shape[0], -1)
    visible = torch.ones_like(is_image) if visible is None else visible.bool()
    documents = documents_of(position_ids, visible)
    if cache is None or not _holds_tokens(cache):
        return documents
    first = visible.long().argmax(dim=1, keepdim=True)
    return documents + (position_ids.gather(1, first) == 0).long()


def _holds_tokens(cache):
    length = cache.get_seq_length()
    return not isinstance(length, int) or length > 0


def _by_row(images, counts, is_image, documents):
    """States [B, S, width], the number of the image of each within its row (0 for padding), and its document."""
    batch, device = is_image.shape[0], is_image.device
    rows = [list(part) for part in _split(images, counts)]
    longest = max(sum(len(image) for image in row) for row in rows)
    states = images[0].new_zeros(batch, longest, images[0].shape[-1])
    numbers = torch.zeros(batch, longest, dtype=torch.long)
    for index, row in enumerate(rows):
        if row:
            joined = torch.cat(row)
            states[index, : len(joined)] = joined
            lengths = torch.tensor([len(image) for image in row])
            numbers[index, : len(joined)] = torch.repeat_interleave(torch.arange(1, len(row) + 1), lengths)
    numbers = numbers.to(device)
    # document of image n of a row: that of the n-th placeholder
    most = max(max(counts), 1)
    of_image = torch.zeros(batch, most + 1, dtype=torch.long, device=device)
    order = torch.where(is_image, is_image.long().cumsum(dim=1), 0)
    of_image.scatter_(1, order, documents)
    return states, numbers, of_image.gather(1, numbers)


def _split(images, counts):
    start = 0
    for count in counts:
        yield images[start : start + count]
        start += count


def _write_numbers(layer, numbers):
    keys = numbers[:, None, :, None].float()
    layer.reset()
    layer.update(keys, keys)
