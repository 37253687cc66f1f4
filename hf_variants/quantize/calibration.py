"""Calibration tokens in windows of one length: no text is dropped for being long, or padded for being short."""

import torch

DEFAULT_LENGTH = 512
# Fewer say nothing of which channels are large: scales and codes would be fitted to the sample.
LEAST_TOKENS = 32


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
        if ids.is_floating_point():
            raise ValueError(f"calibration_ids is of {ids.dtype}, which are no token ids; give integers")
        return ids.reshape(-1).long()
    if isinstance(ids, str) or any(isinstance(part, str) for part in ids):
        raise ValueError("calibration_ids holds text; give token ids: tokenize it with this model's tokenizer")
    parts = [torch.as_tensor(part, dtype=torch.long).reshape(-1) for part in ids]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def check_enough(tokens, name):
    """Raise ValueError for so few tokens that nothing can be learnt from them."""
    if tokens < LEAST_TOKENS:
        raise ValueError(
            f"{name} holds {tokens} tokens, too few to calibrate on: give at least {LEAST_TOKENS} (some thousands are usual), "
            "or use method='rtn', which needs none"
        )
