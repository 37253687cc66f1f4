"""Calibration tokens in windows of one length: no text is dropped for being long, or padded for being short."""

import torch

DEFAULT_LENGTH = 512


def pack_calibration(ids, length=DEFAULT_LENGTH, vocab_size=None):
    """Windows [rows, length] from token ids.

    Args:
        ids: a tensor [rows, tokens] or [tokens], or a list of token lists of any lengths; all are joined in order.
        length: tokens per window; what is left at the end is dropped, unless it is all there is.

    Returns:
        (windows int64 [rows, length], number of dropped tokens).

    Raises:
        ValueError: for no tokens, or a token outside the vocabulary.
    """
    tokens = _flatten(ids)
    if tokens.numel() == 0:
        raise ValueError("calibration_ids holds no tokens; give a tensor [rows, tokens] or a list of token lists")
    if vocab_size is not None and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise ValueError(
            f"calibration_ids holds tokens from {int(tokens.min())} to {int(tokens.max())}, outside "
            f"[0, vocab_size={vocab_size}); tokenize with this model's tokenizer"
        )
    if length < 1:
        raise ValueError(f"calibration_length={length} must be at least 1")
    length = min(length, tokens.numel())
    rows = tokens.numel() // length
    return tokens[: rows * length].view(rows, length), tokens.numel() - rows * length


def _flatten(ids):
    if isinstance(ids, torch.Tensor):
        return ids.reshape(-1).long()
    parts = [torch.as_tensor(part, dtype=torch.long).reshape(-1) for part in ids]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)
