"""What a cache must remember beside keys and values, kept inside the cache itself.

Notable here: an extra layer at index `num_hidden_layers` records, per token, its position, whether it is visible, and the
lengths its rotary frequencies were chosen for (and, for LongRoPE, its embedding). Being a cache layer, it is
reordered by beams, cropped by assisted decoding and reset like the others. It exists only where a model needs it: packed
prompts, and the RoPE rules that follow the length of the row.
"""

from typing import NamedTuple

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, StaticLayer
from transformers.utils.import_utils import is_tracing


class TokenRecord(NamedTuple):
    """Per token of the rows seen so far, each [B, T].

    positions within the document; visible (1) or pad (0); the length of the document when it entered the cache (`prompt`);
    the length that its rotary frequencies were last chosen for (`used`).
    """

    positions: torch.Tensor
    visible: torch.Tensor
    prompt: torch.Tensor
    used: torch.Tensor


def _record_layer(cache, num_layers):
    layer = cache.layers[num_layers] if len(cache.layers) > num_layers else None
    return None if getattr(layer, "holds_images", False) else layer


def image_layers(cache):
    """The layers of `cache` that hold images, behind those of tokens and the record."""
    return [layer for layer in cache.layers if getattr(layer, "holds_images", False)]


def add_image_layers(cache, num_layers, layers):
    """Put `layers`, which hold images, behind the `num_layers` layers of tokens; returns them."""
    _fill_up(cache, num_layers)
    cache.layers.extend(layers)
    return layers


def _fill_up(cache, num_layers):
    """Give a cache that makes its layers as they are used all those of tokens."""
    while len(cache.layers) < num_layers:
        cache.layers.append(cache.layer_class_to_replicate())


def read_record(cache, num_layers):
    """The `TokenRecord` of `cache`, or None where it keeps none (or is empty)."""
    layer = _record_layer(cache, num_layers) if cache is not None else None
    if layer is None or not layer.is_initialized or not _length_is_known_positive(layer):
        return None
    return _as_record(layer.keys)


def _as_record(keys):
    return TokenRecord(*keys[:, 0].long().unbind(-1))


def _length_is_known_positive(layer):
    length = layer.get_seq_length()
    return length > 0 if isinstance(length, int) else True


def read_history(cache, num_layers):
    """The recorded embeddings [B, T, H] of `cache`."""
    return cache.layers[num_layers].values[:, 0]


def write_record(cache, num_layers, record, history=None):
    """Append `record` (and the embeddings `history` [B, T, H], where a rule needs them) to `cache`.

    Returns the record of all tokens, seen and new; positions are kept in fp32, exact up to 2^24.
    """
    if _record_layer(cache, num_layers) is None:
        _fill_up(cache, num_layers)
        cache.layers.insert(num_layers, _new_record_layer(cache))
    keys = torch.stack([part.to(torch.float32) for part in record], dim=-1).unsqueeze(1)
    values = keys[..., :1] if history is None else history.unsqueeze(1)
    keys, _ = cache.layers[num_layers].update(keys, values)
    return _as_record(keys)


def can_record(cache):
    """Whether `cache` can hold a record: sliding static layers alone do not know the longest row they can serve."""
    static = [layer for layer in cache.layers if isinstance(layer, StaticLayer)] if cache is not None else []
    return not static or not all(layer.is_sliding for layer in static)


def _new_record_layer(cache):
    if not can_record(cache):
        raise ValueError(
            "a StaticCache of sliding layers alone cannot record the tokens that packed prompts and the rope types 'dynamic' "
            "and 'longrope' need; use a DynamicCache"
        )
    full = [layer.max_cache_len for layer in cache.layers if isinstance(layer, StaticLayer) and not layer.is_sliding]
    return StaticLayer(max_cache_len=max(full)) if full else DynamicLayer()


class GrowingLayer(DynamicLayer):
    """A `DynamicLayer` with room to grow: a step of a long row writes its own tokens, where the parent copies all it holds.

    Keys and values are views of buffers whose length grows by an eighth. What else changes them (beams, crops, copies,
    offloading) puts other tensors in their place, or leaves tokens behind their end; then the next step takes a new buffer.
    """

    _room = None

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized or self.keys.numel() < COPIED_BELOW or not _is_plain_step(key_states, value_states):
            return super().update(key_states, value_states, *args, **kwargs)
        held, new = self.keys.shape[2], key_states.shape[2]
        if self._room is None or not self._room.continues(self.keys, self.values, held + new):
            self._room = _Room(self.keys, self.values, held + new + max(64, held // 8))
        self.keys, self.values = self._room.write(key_states, value_states)
        return self.keys, self.values

    def reset(self):
        super().reset()
        self._room = None


# numbers of keys in a layer, below which copying them costs less than keeping account of a buffer
COPIED_BELOW = 1 << 15


def _is_plain_step(key_states, value_states):
    recorded = torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad)
    return not recorded and not is_tracing(key_states)


class _Room:
    """Buffers of keys and values [B, heads, capacity, D], how far they are written, and the views that end there."""

    def __init__(self, keys, values, capacity):
        self.buffers = tuple(part.new_empty(*part.shape[:2], capacity, part.shape[3]) for part in (keys, values))
        self.written, self.views = 0, None
        self.write(keys, values)

    def continues(self, keys, values, length):
        """Whether `keys` and `values` are all that was written, and there is room for `length` tokens."""
        same = self.views[0] is keys and self.views[1] is values and length <= self.buffers[0].shape[2]
        return same and self.buffers[0].is_inference() == torch.is_inference_mode_enabled()

    def write(self, keys, values):
        """Put tokens behind those that are written; returns views of all that is written then."""
        new = keys.shape[2]
        for buffer, part in zip(self.buffers, (keys, values), strict=True):
            buffer.narrow(2, self.written, new).copy_(part)
        self.written += new
        self.views = tuple(buffer.narrow(2, 0, self.written) for buffer in self.buffers)
        return self.views


class WindowOfOneLayer(DynamicSlidingWindowLayer):
    """A sliding layer of window 1 keeps no past at all; transformers' slice `[-window + 1:]` would keep all of it."""

    def __init__(self):
        super().__init__(sliding_window=1)

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.cumulative_length += key_states.shape[-2]
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        return key_states, value_states

    def get_mask_sizes(self, query_length):
        return query_length, self.cumulative_length

    def crop(self, tokens_to_remove):
        self.cumulative_length -= abs(tokens_to_remove)

    def reorder_cache(self, beam_idx):
        if self.is_initialized:
            self.keys = self.keys.index_select(0, beam_idx.to(self.keys.device))
            self.values = self.values.index_select(0, beam_idx.to(self.values.device))


def _with_room(layer):
    return GrowingLayer() if type(layer) is DynamicLayer and not layer.is_initialized else layer


def fit_cache(cache, *windows):
    """Replace empty layers: growing ones by those with room, those of a window (or chunk) of one by ones that hold nothing.

    Returns `cache`.
    """
    if cache is None:
        return None
    if type(cache) is DynamicCache and not cache.offloading:
        if cache.layer_class_to_replicate is DynamicLayer:
            cache.layer_class_to_replicate = GrowingLayer
        if cache.layers and not cache.layers[-1].is_initialized:
            cache.layers = [_with_room(layer) for layer in cache.layers]
    if 1 in windows:
        for index, layer in enumerate(cache.layers):
            if type(layer) is DynamicSlidingWindowLayer and layer.sliding_window == 1 and not layer.is_initialized:
                cache.layers[index] = WindowOfOneLayer()
    return cache
