"""What is known of the tokens of a batch: positions, pads, documents and document lengths, across calls that share a cache.

Notable here: everything is per row and per document, so that a row's result never depends on its batch mates, and a document's
never on those packed beside it, whatever mask was given with them.
"""

from typing import NamedTuple

import torch
from transformers.utils.import_utils import is_tracing

from .kv_cache import TokenRecord, can_record, read_history, read_record, write_record
from .masks import Blocks, document_lengths, documents_of, needs_padding


class Sequence(NamedTuple):
    """A batch, ready for the layers.

    inputs_embeds [B, T, H] and position_ids [B, T] of the tokens to run (all tokens again, where a cache had to be
    recomputed); padding [B, seen] or None; documents and positions [B, seen] or None where no row is packed; lengths of each
    token's document, {"prompt" and "current": [B, T]}, or None where no rule asks; blocks of the tokens to run, or None.
    """

    inputs_embeds: torch.Tensor
    position_ids: torch.Tensor
    padding: torch.Tensor | None
    documents: torch.Tensor | None
    positions: torch.Tensor | None
    lengths: dict | None
    blocks: Blocks | None = None


class SequenceReader:
    """Reads batches for one model.

    Args:
        num_layers: where the cache keeps its record.
        follows_length: whether a RoPE rule of the model looks at lengths.
        boundary: original length of the LongRoPE rule, or None.
    """

    def __init__(self, num_layers, follows_length, boundary):
        self.num_layers, self.follows_length, self.boundary = num_layers, follows_length, boundary

    def read(self, inputs_embeds, attention_mask, position_ids, cache, masks_given=False):
        """The `Sequence` of a batch; writes what `cache` has to remember.

        attention_mask: 2D [B, seen] or None. masks_given: whether the caller has made the masks of the layers already.

        Raises:
            ValueError: for position_ids of another shape than the tokens.
        """
        batch, q_len = inputs_embeds.shape[:2]
        given = position_ids is not None
        past = cache.get_seq_length() if cache is not None else 0
        check_mask_width(attention_mask, past, batch, q_len)
        if given and (position_ids.shape[-1] != q_len or position_ids.shape[0] not in (1, batch)):
            raise ValueError(f"position_ids has the shape {tuple(position_ids.shape)}; give [{batch}, {q_len}], as the tokens")
        padding = needs_padding(attention_mask)
        position_ids = resolve_positions(position_ids, padding, past, batch, q_len, inputs_embeds.device)
        visible = _new_columns(padding, batch, q_len, inputs_embeds.device)
        record = read_record(cache, self.num_layers)
        lengths = None
        if self._must_restart(record, position_ids, visible):
            inputs_embeds, position_ids, visible, lengths = self._rewind(cache, record, inputs_embeds, position_ids, visible)
            record, padding, past = None, needs_padding(visible), 0
        known = record is not None or self.follows_length or masks_given or is_tracing(position_ids)
        unrecorded = 0 if known else int(past)
        packed = is_packed(given, position_ids, visible, padding, unrecorded)
        packed = packed and not (masks_given and not can_record(cache))
        if record is None and not self.follows_length and not packed:
            return Sequence(inputs_embeds, position_ids, padding, None, None, None)
        lengths = self._lengths(record, position_ids, visible) if lengths is None else lengths
        if cache is not None:
            new = TokenRecord(position_ids, visible, lengths["prompt"], lengths["current"])
            new = behind_cached(new, padding, unrecorded)
            history = inputs_embeds if self.boundary is not None else None
            record = write_record(cache, self.num_layers, new, history)
            seen, seen_visible = record.positions, record.visible.bool()
        else:
            seen, seen_visible = position_ids, visible
        documents = documents_of(seen, seen_visible)
        if not is_tracing(documents) and not bool(documents.any()):
            documents = None
        return Sequence(inputs_embeds, position_ids, padding, documents, seen, lengths)

    def peek(self, inputs_embeds, attention_mask, position_ids, cache):
        """As `read`, for building masks ahead of a call: nothing is written, and lengths are left out.

        position_ids: of the new tokens, or of the whole row, [B or 1, tokens seen so far]; the cache's record goes before it.
        """
        batch, q_len = inputs_embeds.shape[:2]
        past = cache.get_seq_length() if cache is not None else 0
        padding, whole = needs_padding(attention_mask), position_ids
        position_ids = None if whole is None else whole[:, -q_len:]
        position_ids = resolve_positions(position_ids, padding, past, batch, q_len, inputs_embeds.device)
        visible = _new_columns(padding, batch, q_len, inputs_embeds.device)
        record = read_record(cache, self.num_layers)
        if record is not None:
            pairs = (record.positions, position_ids), (record.visible, visible)
            positions, visible = (insert_columns(*pair, past) for pair in pairs)
        elif whole is not None and whole.shape[1] == past + q_len:
            positions = whole.to(inputs_embeds.device).expand(batch, -1)
            visible = _new_columns(padding, *positions.shape, inputs_embeds.device)
        else:
            return Sequence(inputs_embeds, position_ids, padding, None, None, None)
        documents = documents_of(positions, visible.bool())
        documents = documents if bool(documents.any()) else None
        return Sequence(inputs_embeds, position_ids, padding, documents, positions, None)

    def restart(self, inputs_embeds, attention_mask, position_ids, cache):
        """The embeddings of the whole row [B, seen + T, H], `cache` emptied, where `read` would recompute it; else None.

        Arguments as `peek`.
        """
        batch, q_len = inputs_embeds.shape[:2]
        past, padding = cache.get_seq_length(), needs_padding(attention_mask)
        position_ids = None if position_ids is None else position_ids[:, -q_len:]
        position_ids = resolve_positions(position_ids, padding, past, batch, q_len, inputs_embeds.device)
        visible = _new_columns(padding, batch, q_len, inputs_embeds.device)
        record = read_record(cache, self.num_layers)
        if not self._must_restart(record, position_ids, visible):
            return None
        return self._rewind(cache, record, inputs_embeds, position_ids, visible)[0]

    def _lengths(self, record, position_ids, visible):
        new = document_lengths(position_ids, documents_of(position_ids, visible), visible)
        if record is None:
            return {"prompt": new, "current": new}
        last = last_visible(record)
        # a token that continues the cached document keeps the length that document had as a prompt
        continues = record.visible.any(dim=1, keepdim=True) & (position_ids > record.positions.gather(1, last))
        prompt = torch.where(continues, record.prompt.gather(1, last), new)
        return {"prompt": prompt, "current": new}

    def _must_restart(self, record, position_ids, visible):
        """Whether a row is on the other side of the LongRoPE boundary than its cached keys were rotated for."""
        if self.boundary is None or record is None or is_tracing(position_ids):
            return False
        used = record.used.gather(1, last_visible(record)).squeeze(1)
        reached = torch.where(visible, position_ids + 1, 0).amax(dim=1)
        reached = torch.where(reached > 0, reached, used)
        return bool(((used > self.boundary) != (reached > self.boundary)).logical_and(record.visible.any(dim=1)).any())

    def _rewind(self, cache, record, inputs_embeds, position_ids, visible):
        """All tokens again; what their prompts chose stays, though another rule or another row made the cache restart."""
        filled = cache.get_seq_length()
        prompt = torch.cat((record.prompt[:, :filled], self._lengths(record, position_ids, visible)["prompt"]), dim=1)
        history = read_history(cache, self.num_layers)[:, :filled].to(inputs_embeds.dtype)
        inputs_embeds = torch.cat((history, inputs_embeds), dim=1)
        position_ids = torch.cat((record.positions[:, :filled], position_ids), dim=1)
        visible = torch.cat((record.visible[:, :filled].bool(), visible), dim=1)
        cache.reset()
        return inputs_embeds, position_ids, visible, {**self._lengths(None, position_ids, visible), "prompt": prompt}


def check_mask_width(attention_mask, past, batch, q_len):
    """Refuse a 2D mask that does not cover every token seen so far. `past` may be a tensor (static caches): not looked at."""
    if attention_mask is not None and attention_mask.shape[0] != batch:
        raise ValueError(f"attention_mask has {attention_mask.shape[0]} rows, but there are {batch} rows of tokens")
    if attention_mask is None or not isinstance(past, int) or attention_mask.shape[1] == past + q_len:
        return
    raise ValueError(
        f"attention_mask has {attention_mask.shape[1]} columns, but there are {past} cached and {q_len} new tokens; give one "
        f"column per token, {past + q_len} in all"
    )


def resolve_positions(position_ids, padding, past, batch, q_len, device):
    """position_ids [B, T]: as given, or counted over the real tokens of each row, pads excluded."""
    if position_ids is not None:
        return position_ids.to(device).expand(batch, -1)
    if padding is not None:
        return (padding.long().cumsum(dim=1) - 1).clamp(min=0)[:, -q_len:].to(device)
    return (torch.arange(q_len, device=device) + past).unsqueeze(0).expand(batch, -1)


def is_packed(given, position_ids, visible, padding, unrecorded):
    """Whether some row holds several documents. Only positions that were given can say so; while tracing it is assumed.

    unrecorded: number of cached tokens without a record, which are one document, the first.
    """
    if not given or (position_ids.shape[1] == 1 and not unrecorded):
        return False
    if is_tracing(position_ids):
        return True
    count = unrecorded if padding is None else padding[:, :unrecorded].sum(dim=1, keepdim=True)
    if unrecorded and bool((visible & (position_ids < count)).any()):
        return True
    return position_ids.shape[1] > 1 and bool(documents_of(position_ids, visible).any())


def behind_cached(new, padding, unrecorded):
    """The `TokenRecord` `new` behind that of `unrecorded` cached tokens, which are one document."""
    if not unrecorded:
        return new
    batch, device = new.positions.shape[0], new.positions.device
    every = torch.ones(batch, unrecorded, dtype=torch.bool, device=device)
    visible = every if padding is None else padding[:, :unrecorded].to(device)
    length = visible.sum(dim=1, keepdim=True).expand(-1, unrecorded)
    old = TokenRecord(resolve_positions(None, visible, 0, batch, unrecorded, device), visible, length, length)
    return TokenRecord(*(torch.cat(parts, dim=1) for parts in zip(old, new, strict=True)))


def last_visible(record):
    """Column [B, 1] of the last visible token of each row of a record."""
    columns = torch.arange(record.visible.shape[1], device=record.visible.device)
    return (columns * record.visible).argmax(dim=1, keepdim=True)


def insert_columns(table, new, past):
    """`table` [B, N] with `new` [B, T] from column `past` on: behind a growing table, or in the free slots of a static one."""
    columns = torch.arange(new.shape[1], device=new.device) + past
    missing = int(columns[-1]) + 1 - table.shape[1]
    table = torch.nn.functional.pad(table, (0, max(missing, 0)))
    return table.index_copy(1, columns, new.to(table.dtype))


def _new_columns(padding, batch, q_len, device):
    if padding is None:
        return torch.ones(batch, q_len, dtype=torch.bool, device=device)
    return padding[:, -q_len:].to(device)
