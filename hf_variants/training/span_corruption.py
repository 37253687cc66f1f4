"""Span corruption: spans of a row are hidden behind one sentinel each, and the decoder writes what they held.

    row       Thank you  for inviting  me to your party  last  week .
    encoder   Thank you  <extra_id_0>  me to your party  <extra_id_1>  week .  </s>
    decoder   <extra_id_0> for inviting <extra_id_1> last </s>

Raffel et al. 2020 (arXiv:1910.10683 §3.1.4): `noise_density` of the tokens, in spans of `mean_span_length` on average, the
first tokens of a row never hidden.

Notable here: how many tokens and spans are hidden is fixed by the length of a row, so every full row gives an encoder exactly
`data.sequence_length` tokens and a decoder one and the same number; which ones follows from row, epoch and seed alone.
"""

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

IGNORED = -100


class Corruption(NamedTuple):
    """Lengths in tokens of one corrupted row: of the row, of both sides (end token included), and what is hidden of it."""

    row: int
    inputs: int
    targets: int
    hidden: int
    spans: int


def corruption_of(row, noise_density, mean_span_length):
    """The `Corruption` of a row of `row` tokens. A row of less than two tokens keeps them all."""
    hidden = min(max(round(row * noise_density), 1), row - 1)
    if hidden < 1:
        return Corruption(row, row + 1, 1, 0, 0)
    spans = max(min(round(hidden / mean_span_length), hidden, row - hidden), 1)
    return Corruption(row, row - hidden + spans + 1, hidden + spans + 1, hidden, spans)


def corruption_for(inputs, noise_density, mean_span_length):
    """The `Corruption` of the longest row that an encoder of `inputs` tokens can read.

    Raises:
        ValueError: for a density or mean length that leaves nothing to hide or to read, or too short an encoder.
    """
    check_numbers(noise_density, mean_span_length)
    if inputs < 4:
        raise ValueError(
            f"data.sequence_length={inputs} must be at least 4 with objective='span_corruption' (a token to read, a sentinel, "
            "the end token, and something to hide)"
        )
    # one token more adds at most one to the inputs, so that they are met exactly
    shortest, longest = 2, 2
    while corruption_of(longest, noise_density, mean_span_length).inputs <= inputs:
        longest *= 2
    while longest - shortest > 1:
        middle = (shortest + longest) // 2
        fits = corruption_of(middle, noise_density, mean_span_length).inputs <= inputs
        shortest, longest = (middle, longest) if fits else (shortest, middle)
    return corruption_of(shortest, noise_density, mean_span_length)


def check_numbers(noise_density, mean_span_length):
    """Refuse numbers by which no row can be cut into spans. Raises ValueError."""
    if not 0 < noise_density < 1:
        raise ValueError(f"span_corruption.noise_density={noise_density} must lie between 0 and 1")
    if mean_span_length < 1:
        raise ValueError(f"span_corruption.mean_span_length={mean_span_length} must be at least 1 token")
    between = mean_span_length * (1 - noise_density) / noise_density
    if between < 1:
        raise ValueError(
            f"span_corruption.noise_density={noise_density} with mean_span_length={mean_span_length} leaves {between:.2g} "
            "tokens between two spans, and there must be at least 1; lower the density or lengthen the spans"
        )


@dataclass
class CorruptedRows:
    """Collator of span corruption: rows {input_ids [T], perhaps attention_mask} become {input_ids, attention_mask, labels}.

    Attributes:
        corruption: of a full row. sentinel_ids: at least as many as it has spans. eos_id, pad_id: end of both sides, filler.
        seed: decides which spans. epoch: set anew by training at every epoch.
    """

    sentinel_ids: tuple
    eos_id: int
    pad_id: int
    corruption: Corruption
    noise_density: float = 0.15
    mean_span_length: float = 3.0
    seed: int = 0
    epoch: int = 0

    def __call__(self, rows):
        sides = [self.corrupt(_real(row)) for row in rows]
        inputs = np.full((len(rows), self.corruption.inputs), self.pad_id, dtype=np.int64)
        mask = np.zeros_like(inputs)
        labels = np.full((len(rows), self.corruption.targets), IGNORED, dtype=np.int64)
        for index, (read, written) in enumerate(sides):
            inputs[index, : len(read)], mask[index, : len(read)], labels[index, : len(written)] = read, 1, written
        arrays = {"input_ids": inputs, "attention_mask": mask, "labels": labels}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def corrupt(self, ids):
        """(what the encoder reads, what the decoder writes) of the ids (int [n]) of one row, both with the end token."""
        lengths = corruption_of(len(ids), self.noise_density, self.mean_span_length)
        draw = np.random.default_rng((self.seed, self.epoch, zlib.crc32(np.asarray(ids, dtype=np.int64).tobytes())))
        hidden = hidden_tokens(lengths, draw)
        return self._side(ids, hidden), self._side(ids, ~hidden) if lengths.spans else np.array([self.eos_id])

    def _side(self, ids, replaced):
        """Ids in which each run of `replaced` tokens is one sentinel, counted from the left, and the end token."""
        begins = replaced & ~np.concatenate([[False], replaced[:-1]])
        sentinels = np.asarray(self.sentinel_ids)[np.cumsum(begins) - 1] if begins.any() else ids
        return np.append(np.where(begins, sentinels, ids)[begins | ~replaced], self.eos_id)


def hidden_tokens(lengths, draw):
    """Which tokens of a row are hidden (bool [row]): spans of random lengths, each behind a visible stretch of random length.

    Args:
        lengths: `Corruption`. draw: a numpy generator.
    """
    if not lengths.spans:
        return np.zeros(lengths.row, dtype=bool)
    visible = _random_parts(lengths.row - lengths.hidden, lengths.spans, draw)
    spans = _random_parts(lengths.hidden, lengths.spans, draw)
    return np.repeat(np.tile([False, True], lengths.spans), np.stack([visible, spans], axis=1).reshape(-1))


def _random_parts(total, parts, draw):
    """`parts` lengths of at least one that sum to `total`, every way of cutting being as likely."""
    cuts = np.sort(draw.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def _real(row):
    ids = np.asarray(row["input_ids"], dtype=np.int64)
    return ids[np.asarray(row["attention_mask"], dtype=bool)] if "attention_mask" in row else ids


def sentinel_name(pattern, index):
    """The token of sentinel `index`. Raises ValueError for a pattern without a place for the number."""
    if pattern.count("{}") != 1:
        raise ValueError(f"span_corruption.sentinel={pattern!r} must hold {{}} once, where the number stands: <extra_id_{{}}>")
    return pattern.replace("{}", str(index))


def sentinel_ids(tokenizer, pattern, needed):
    """Ids (tuple of int) of the first `needed` sentinels of a tokenizer.

    Raises:
        ValueError: naming how many it has, where it has fewer.
    """
    vocabulary, found = tokenizer.get_vocab(), []
    while len(found) < needed and (name := sentinel_name(pattern, len(found))) in vocabulary:
        found.append(vocabulary[name])
    if len(found) < needed:
        raise ValueError(
            f"objective='span_corruption' needs {needed} sentinels, one for each span of a row, and the tokenizer has "
            f"{len(found)} of span_corruption.sentinel={pattern!r}: name tokens that it has, shorten data.sequence_length, or "
            "lengthen span_corruption.mean_span_length"
        )
    return tuple(found)


def sentinel_names(pattern, count):
    """The first `count` sentinels, as tokens."""
    return [sentinel_name(pattern, index) for index in range(count)]


def add_sentinels(tokenizer, names):
    """Add those of `names` that a tokenizer lacks as special tokens; returns how many were added."""
    vocabulary = tokenizer.get_vocab()
    missing = [name for name in names if name not in vocabulary]
    if missing:
        tokenizer.add_tokens(missing, special_tokens=True)
    return len(missing)
