"""Which key each query may see: a composition of small predicates over absolute token indices.

Notable here: padding, documents packed into a row, windows and chunks are all predicates, so they combine; a query always sees
itself, so a row of padding cannot produce NaN; no mask is built where the backend's own causal rule already says the same.
"""

from typing import NamedTuple

import torch
from transformers.utils.import_utils import is_tracing


class Blocks(NamedTuple):
    """Tokens that see each other in both directions, such as those of one image.

    numbers: [B, T] of the new tokens, equal within a block, 0 outside of any. windowed: whether windows and chunks hide within
    a block too.
    """

    numbers: torch.Tensor
    windowed: bool


class Geometry(NamedTuple):
    """Absolute indices of the queries [Q] and keys [K] of a layer kind, and whether they are all of the row from its start."""

    queries: torch.Tensor
    keys: torch.Tensor
    whole: bool
    static: bool


def geometry_of(cache, layer_index, q_len, device):
    """The `Geometry` of layer `layer_index` for `q_len` new tokens."""
    if cache is None:
        index = torch.arange(q_len, device=device)
        return Geometry(index, index, True, False)
    offset = cache.get_query_offset(layer_index)
    kv_len, kv_offset = cache.get_mask_sizes(q_len, layer_index)
    static = getattr(cache, "is_compileable", False)
    offset = offset.to(device) if isinstance(offset, torch.Tensor) else offset
    whole = isinstance(offset, int) and offset == 0 and kv_len == q_len
    return Geometry(
        torch.arange(q_len, device=device) + offset, torch.arange(kv_len, device=device) + kv_offset, whole, static
    )


def places_of(geometry, padding, positions):
    """Places of queries [B or 1, Q] and keys [B or 1, K], from 0 in each document; pads inside a row do not count.

    padding, positions: as in `build_mask`.
    """
    index = geometry.queries, geometry.keys
    if positions is None and padding is None:
        return tuple(part.unsqueeze(0) for part in index)
    places = (padding.long().cumsum(dim=1) - 1).clamp(min=0) if positions is None else positions
    return tuple(_columns(places, part) for part in index)


def documents_of(position_ids, visible):
    """Document number of each token, [B, T]: a new one starts where a visible token's position does not grow.

    Pads neither start nor end a document: positions are compared with those of the last visible token before.
    """
    index = torch.arange(position_ids.shape[1], device=position_ids.device).expand_as(position_ids)
    last = torch.where(visible, index, -1).cummax(dim=1).values
    before = torch.nn.functional.pad(last[:, :-1], (1, 0), value=-1)
    starts = visible & (before >= 0) & (position_ids <= position_ids.gather(1, before.clamp(min=0)))
    return starts.cumsum(dim=1)


def document_lengths(position_ids, documents, visible):
    """Number of tokens of each token's document (its highest visible position plus one), [B, T]."""
    reached = torch.where(visible, position_ids + 1, 0)
    longest = torch.zeros_like(reached).scatter_reduce(1, documents, reached, reduce="amax")
    return longest.gather(1, documents)


def sees_everything(sequence, cache, layer_index, windows, is_causal):
    """Whether the one new token of each row may see all that is cached, so that no layer kind needs a mask.

    windows: window and chunk length of the model, or None; with one it is left to `build_mask`.
    """
    one = is_causal and sequence.inputs_embeds.shape[1] == 1 and is_bare(sequence)
    return one and not any(windows) and not getattr(cache, "is_compileable", False)


def is_bare(sequence):
    """Whether rows hold neither pads nor several documents nor blocks."""
    return sequence.padding is None and sequence.documents is None and sequence.blocks is None


def backend_windows(geometry, plan, sequence, is_causal):
    """Whether the window of a sliding layer is all there is to hide in whole rows, which backends do without a mask."""
    bare = is_bare(sequence) and plan.chunk is None
    return plan.window is not None and is_causal and geometry.whole and bare and not is_tracing(sequence.inputs_embeds)


def backend_packs(geometry, plan, sequence, is_causal):
    """Whether documents (and a window) are all there is to hide in whole rows on a CPU, where they are run one by one."""
    packed = sequence.documents is not None and sequence.padding is None and sequence.blocks is None and plan.chunk is None
    on_cpu = sequence.inputs_embeds.device.type == "cpu" and not is_tracing(sequence.inputs_embeds)
    return packed and on_cpu and is_causal and geometry.whole and sequence.documents.shape[1] == geometry.queries.numel()


def build_mask(geometry, *, window, chunk, is_causal, padding, documents, positions, blocks=None):
    """Boolean mask [B or 1, 1, Q, K], true where the key is visible, or None where nothing needs hiding by a mask.

    Args:
        geometry: absolute indices of queries and keys.
        window: visible tokens of a sliding layer, the query included; centred when not `is_causal`.
        chunk: chunk length of a chunked layer.
        padding: [B, tokens so far], true at real tokens, or None.
        documents: [B, tokens so far], or None when each row is one document.
        positions: [B, tokens so far], position within the document; read by chunked layers of packed rows.
        blocks: `Blocks` of the new tokens of a causal layer, or None.
    """
    queries, keys = geometry.queries.view(1, -1, 1), geometry.keys.view(1, 1, -1)
    if padding is None and documents is None and blocks is None and _backend_knows(geometry, window, chunk, is_causal):
        return None
    visible = keys <= queries if is_causal else torch.ones_like(keys <= queries)
    together = None if blocks is None else _same_block(geometry, blocks.numbers)
    if blocks is not None and blocks.windowed:
        visible = visible | together
    if window is not None:
        near = (keys - queries).abs() < window if is_causal else (keys - queries).abs() <= window // 2
        visible = visible & near
    if chunk is not None:
        visible = visible & _same_chunk(geometry, chunk, padding, documents, positions)
    if blocks is not None and not blocks.windowed:
        visible = visible | together
    if padding is not None:
        visible = visible & _columns(padding, geometry.keys).unsqueeze(1)
    if documents is not None:
        visible = visible & (
            _columns(documents, geometry.queries).unsqueeze(2) == _columns(documents, geometry.keys).unsqueeze(1)
        )
    return (visible | (keys == queries)).unsqueeze(1)


def _backend_knows(geometry, window, chunk, is_causal):
    """Whether 'causal if several queries, else everything' is the whole truth for these indices."""
    if geometry.static:
        return False
    q_len, kv_len = geometry.queries.numel(), geometry.keys.numel()
    if window is not None and kv_len > (window if is_causal else window // 2 + 1):
        return False
    if chunk is not None and (kv_len > chunk or not geometry.whole):
        return False
    return geometry.whole or (q_len == 1 and is_causal)


def _columns(table, index):
    """Columns `index` of `table` [B, N]; columns beyond it (unfilled slots of a static cache) read as zero."""
    inside = index.clamp(max=table.shape[1] - 1)
    picked = table[:, inside]
    return torch.where(index < table.shape[1], picked, torch.zeros_like(picked))


def _same_block(geometry, numbers):
    """[B, Q, K], true where query and key are new tokens of one block."""
    at = geometry.keys - geometry.queries[0]
    of_keys = torch.where(at >= 0, _columns(numbers, at.clamp(min=0)), torch.zeros_like(numbers[:, :1]))
    return (numbers.unsqueeze(2) == of_keys.unsqueeze(1)) & (of_keys > 0).unsqueeze(1)


def _same_chunk(geometry, chunk, padding, documents, positions):
    if documents is not None:
        q, k = (_columns(positions, index) for index in (geometry.queries, geometry.keys))
        return torch.div(q, chunk, rounding_mode="floor").unsqueeze(2) == torch.div(k, chunk, rounding_mode="floor").unsqueeze(
            1
        )
    start = torch.zeros(1, 1, dtype=torch.long, device=geometry.keys.device)
    if padding is not None:
        start = padding.to(torch.int8).argmax(dim=1, keepdim=True)
    q, k = ((index.unsqueeze(0) - start).div(chunk, rounding_mode="floor") for index in (geometry.queries, geometry.keys))
    return q.unsqueeze(2) == k.unsqueeze(1)


def needs_padding(attention_mask):
    """The mask as booleans, or None where it hides nothing (not looked at while tracing, which cannot branch on data)."""
    if attention_mask is None:
        return None
    padding = attention_mask.to(torch.bool)
    if not is_tracing(padding) and bool(padding.all()):
        return None
    return padding
