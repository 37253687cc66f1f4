"""Pairs as token ids: what an encoder reads, what its decoder writes, and batches of both.

Notable here: a source has the ids that `tokenizer(text)` gives, so that whoever calls the model later gives it what it was
trained on; every target ends with the end token; pads of labels are -100, and nothing is cut without being counted.
"""

from dataclasses import dataclass

import torch

IGNORED = -100


@dataclass
class EncodedPairs(torch.utils.data.Dataset):
    """Rows {input_ids, labels} (lists of int), with the records they were made of.

    Attributes:
        longer: {"source", "target"}: how many were longer than allowed, and cut or left out with their pair.
    """

    rows: list
    records: list
    longer: dict

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def decoder_start_of(config, where):
    """`decoder_start_token_id` of a model's config. Raises ValueError naming `where` when there is none, unless its decoder
    begins with the last token of what it writes (mBART)."""
    start = getattr(config, "decoder_start_token_id", None)
    if start is None and getattr(config, "decoder_start", "token") == "token":
        raise ValueError(
            f"{where} has no decoder_start_token_id, so its decoder could not begin; set it in the config (T5 begins with the "
            "pad, BART with the end token)"
        )
    return start


def encode_pairs(records, tokenizer, spec, decoder_start, name="training"):
    """`EncodedPairs` of records by the names of a `PairsSpec`.

    Args:
        decoder_start: id with which the decoder begins; a bos token equal to it is not written a second time.
        name: of the records, for messages.

    Raises:
        ValueError: for longer ones under over_long="refuse", or where dropping them leaves none.
    """
    records = list(records)
    sources = [f"{spec.prefix}{record[spec.source_key]}" for record in records]
    read = tokenizer(sources, verbose=False)["input_ids"]
    written = [
        _ended(ids, tokenizer, decoder_start)
        for ids in tokenizer(text_target=[record[spec.target_key] for record in records], verbose=False)["input_ids"]
    ]
    limits = {"source": spec.max_source_length, "target": spec.max_target_length}
    too_long = {
        side: [index for index, ids in enumerate(rows) if len(ids) > limits[side]]
        for side, rows in (("source", read), ("target", written))
    }
    longer = {side: len(found) for side, found in too_long.items()}
    if spec.over_long == "refuse" and any(longer.values()):
        longest = {"source": max(map(len, read)), "target": max(map(len, written))}
        parts = [
            f"{longer[side]} {side}s are longer than data.max_{side}_length={limits[side]}, up to {longest[side]} tokens"
            for side in longer
            if longer[side]
        ]
        raise ValueError(
            f"of {len(records)} {name} pairs, {' and '.join(parts)}; raise it, or set data.over_long to drop or truncate"
        )
    if spec.over_long == "truncate":
        for index in too_long["source"]:
            read[index] = _cut(read[index], limits["source"], tokenizer)
        for index in too_long["target"]:
            written[index] = _cut(written[index], limits["target"], tokenizer)
        left_out = set()
    else:
        left_out = set(too_long["source"]) | set(too_long["target"])
    kept = [index for index in range(len(records)) if index not in left_out]
    if not kept:
        raise ValueError(f"all {len(records)} {name} pairs are longer than data.max_source_length or data.max_target_length")
    rows = [{"input_ids": read[index], "labels": written[index]} for index in kept]
    return EncodedPairs(rows, [records[index] for index in kept], longer)


def _ended(ids, tokenizer, decoder_start):
    """A target without a doubled beginning, and with its end token."""
    if ids and ids[0] == decoder_start == tokenizer.bos_token_id:
        ids = ids[1:]
    return ids if ids and ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id]


def _cut(ids, length, tokenizer):
    """The first ids; an end token at the end stays there."""
    if ids[-1] == tokenizer.eos_token_id:
        return [*ids[: length - 1], ids[-1]]
    return ids[:length]


@dataclass
class PairCollator:
    """Batches of rows {input_ids, labels}: {input_ids, attention_mask, labels} padded on the right, labels with -100.

    What the decoder reads is made from the labels by the model itself.
    """

    pad_id: int
    multiple_of: int = 1

    def __call__(self, rows):
        ids, mask = self._padded([row["input_ids"] for row in rows], self.pad_id)
        labels, _ = self._padded([row["labels"] for row in rows], IGNORED)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def _padded(self, rows, filler):
        longest = max(map(len, rows))
        width = -(-longest // self.multiple_of) * self.multiple_of
        ids = torch.full((len(rows), width), filler, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : len(row)], mask[index, : len(row)] = torch.as_tensor(row), 1
        return ids, mask
