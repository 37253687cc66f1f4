"""The unigram baseline: how well token frequencies alone predict held-out text.

Notable here: a language model that does not fall far below this number has learned no context.
"""

import math

import numpy as np

IGNORED = -100


def token_counts(labels, vocab_size):
    """Occurrences of each token id, int64 [vocab_size], from an iterable of label arrays; -100 is skipped."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for row in labels:
        row = np.asarray(row).reshape(-1)
        counts += np.bincount(row[row != IGNORED], minlength=vocab_size)
    return counts


def unigram_perplexity(train_counts, eval_counts):
    """exp of the cross-entropy of eval tokens under add-one smoothed training frequencies.

    Args:
        train_counts, eval_counts: int arrays [vocab_size].

    Raises:
        ValueError: when the shapes differ or there is no evaluation token.
    """
    train_counts, eval_counts = np.asarray(train_counts, dtype=np.float64), np.asarray(eval_counts, dtype=np.float64)
    if train_counts.shape != eval_counts.shape:
        raise ValueError(f"train_counts {train_counts.shape} and eval_counts {eval_counts.shape} must have equal shapes")
    if eval_counts.sum() == 0:
        raise ValueError("eval_counts holds no token, so there is nothing to predict")
    log_probability = np.log(train_counts + 1) - math.log(train_counts.sum() + len(train_counts))
    return float(math.exp(-(eval_counts * log_probability).sum() / eval_counts.sum()))
