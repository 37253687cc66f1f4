"""Decoding speed: new tokens per second of greedy generation with a cache, one row.

Notable here: the prompt's own forward is timed apart and taken off, and the median of several runs is given, since
one run on a busy machine says little.
"""

import statistics
import time

import torch


@torch.no_grad()
def decoding_speed(model, input_ids, new_tokens=64, repeats=3, **options):
    """Tokens per second (float) of greedy decoding after a prompt.

    Args:
        model: a generating model in eval mode.
        input_ids: the prompt, int64 [1, T].
        new_tokens: tokens generated per run, at least 2.
        repeats: timed runs, after one that is not timed.
        options: further keywords of `generate`, such as `cache_implementation`.

    Raises:
        ValueError: for fewer than 2 new tokens or a prompt of several rows.
    """
    if new_tokens < 2 or input_ids.shape[0] != 1:
        raise ValueError(
            f"new_tokens={new_tokens} must be at least 2 and the prompt a single row, not {tuple(input_ids.shape)}"
        )
    input_ids = input_ids.to(model.device)
    _seconds(model, input_ids, new_tokens, options)
    runs = []
    for _ in range(repeats):
        whole, prompt = (_seconds(model, input_ids, number, options) for number in (new_tokens, 1))
        runs.append((new_tokens - 1) / max(whole - prompt, 1e-9))
    return statistics.median(runs)


def _seconds(model, input_ids, new_tokens, options):
    _wait(model)
    began = time.perf_counter()
    # min_new_tokens keeps an early end of text from shortening the work
    mask = torch.ones_like(input_ids)
    length = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
    model.generate(input_ids=input_ids, attention_mask=mask, do_sample=False, **length, **options)
    _wait(model)
    return time.perf_counter() - began


def _wait(model):
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
