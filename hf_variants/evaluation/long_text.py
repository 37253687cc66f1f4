"""The beginning of a text file as the ids of one document."""

from pathlib import Path

import torch


def text_ids(text, tokenizer, tokens):
    """ids [tokens + 1] of the beginning of a text file, behind the tokenizer's bos. Raises ValueError for a shorter text."""
    if not Path(text).is_file():
        raise ValueError(f"--text {text!r} is not a file")
    try:
        read = Path(text).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--text {text!r} is not UTF-8 text: {error}") from None
    if "\0" in read:
        raise ValueError(f"--text {text!r} is binary, not text: it holds zero bytes")
    # a whole library need not be encoded for the beginning of it
    ids, size = [], 16 * (tokens + 1)
    head = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    while len(ids) <= tokens and (not ids or size // 2 < len(read)):
        ids = head + tokenizer(read[:size], add_special_tokens=False, verbose=False)["input_ids"]
        size *= 2
    if len(ids) <= tokens:
        there = max(len(ids) - 1, 0)
        raise ValueError(f"--text {text!r} holds {there:,} tokens to predict, less than --tokens {tokens:,}")
    return torch.tensor(ids[: tokens + 1])
