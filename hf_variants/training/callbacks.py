"""Callbacks that add numbers to what Trainer logs: tokens per second, utilisation, time left, perplexity.

Notable here: they work with a plain Trainer too; numbers enter the log history and whatever tracker comes after them.
"""

import math
import time

from transformers import TrainerCallback


def add_to_log(state, logs, values):
    """Put values into the line being logged: the history of the run, and the dict that later callbacks receive."""
    logs.update(values)
    if state.log_history:
        state.log_history[-1].update(values)


class ThroughputCallback(TrainerCallback):
    """Logs, of the training steps since the last line, evaluation and saving excluded:

    - `tokens_per_second`, of all processes together;
    - `mfu`: model FLOP/s (forward and backward, no recomputation) as a share of the peak of the devices (Chowdhery et al.
      2022, arXiv:2204.02311 app. B), where both are known;
    - `eta_seconds`: steps left, at the mean seconds of a step so far with evaluation and saving included.

    Args:
        tokens_per_step: tokens of one optimizer step over all processes.
        flops_per_token: forward and backward, or None.
        peak_flops: FLOP/s of all devices together, or None.
    """

    def __init__(self, tokens_per_step, flops_per_token=None, peak_flops=None):
        self.tokens_per_step, self.flops_per_token, self.peak_flops = tokens_per_step, flops_per_token, peak_flops
        self.seconds = self.total_seconds = 0.0
        self.steps = self.total_steps = 0
        self._began = self._train_began = None

    def on_train_begin(self, args, state, control, **kwargs):
        self._train_began = time.perf_counter()

    def on_step_begin(self, args, state, control, **kwargs):
        self._began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        elapsed = time.perf_counter() - self._began
        self.seconds, self.steps = self.seconds + elapsed, self.steps + 1
        self.total_seconds, self.total_steps = self.total_seconds + elapsed, self.total_steps + 1

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is None or "loss" not in logs or not self.steps:
            return
        speed = self.tokens_per_step * self.steps / self.seconds
        per_step = (time.perf_counter() - self._train_began) / self.total_steps
        values = {
            "tokens_per_second": round(speed, 1),
            "eta_seconds": round(per_step * (state.max_steps - state.global_step), 3),
        }
        if self.flops_per_token and self.peak_flops:
            values["mfu"] = round(speed * self.flops_per_token / self.peak_flops, 4)
        add_to_log(state, logs, values)
        self.seconds, self.steps = 0.0, 0

    def tokens_per_second(self):
        """Over all steps of this process, or None when it made none."""
        return self.tokens_per_step * self.total_steps / self.total_seconds if self.total_steps else None

    def mfu(self):
        """Over all steps of this process, or None where it is not known."""
        speed = self.tokens_per_second()
        return speed * self.flops_per_token / self.peak_flops if speed and self.flops_per_token and self.peak_flops else None


class EpochCallback(TrainerCallback):
    """Tells a collator that draws anew at every epoch which epoch it is."""

    def __init__(self, collator):
        self.collator = collator

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.collator.epoch = int(state.epoch or 0)


class PerplexityCallback(TrainerCallback):
    """Logs `eval_perplexity` beside every `eval_loss`."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "eval_loss" in logs:
            add_to_log(state, logs, {"eval_perplexity": math.exp(min(logs["eval_loss"], 100.0))})


def add_callback_before_trackers(trainer, callback):
    """Trackers read a line when their turn comes, so what adds to it must come earlier than Trainer.add_callback would
    put it.
    """
    trainer.callback_handler.callbacks.insert(0, callback)
