"""What a cache must remember beside keys and values, kept inside the cache itself.

Notable here: an extra layer at index `num_hidden_layers` records, per token, its position, whether it is visible, and the
lengths its rotary frequencies were chosen for (and, for LongRoPE, its embedding). Being a cache layer, it is
reordered by beams, cropped by assisted decoding and reset like the others. It exists only where a model needs it: packed
prompts, and the RoPE rules that follow the length of the row.
"""

from typing import NamedTuple

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer


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
    return cache.layers[num_layers] if len(cache.layers) > num_layers else None


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
        while len(cache.layers) < num_layers:
            cache.layers.append(cache.layer_class_to_replicate())
        cache.layers.append(_new_record_layer(cache))
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


def fit_cache(cache, *windows):
    """Replace the empty layers of a window (or a chunk) of one by layers that hold nothing. Returns `cache`."""
    if cache is not None and 1 in windows:
        for index, layer in enumerate(cache.layers):
            if type(layer) is DynamicSlidingWindowLayer and layer.sliding_window == 1 and not layer.is_initialized:
                cache.layers[index] = WindowOfOneLayer()
    return cache
