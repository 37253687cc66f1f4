"""Callbacks that add numbers to what Trainer logs: tokens per second, perplexity, and how experts are used.

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
    """Logs `tokens_per_second` of the training steps since the last line, evaluation and saving excluded.

    Args:
        tokens_per_step: tokens of one optimizer step over all processes.
    """

    def __init__(self, tokens_per_step):
        self.tokens_per_step = tokens_per_step
        self.seconds = self.total_seconds = 0.0
        self.steps = self.total_steps = 0
        self._began = None

    def on_step_begin(self, args, state, control, **kwargs):
        self._began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        elapsed = time.perf_counter() - self._began
        self.seconds, self.steps = self.seconds + elapsed, self.steps + 1
        self.total_seconds, self.total_steps = self.total_seconds + elapsed, self.total_steps + 1

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is None or "loss" not in logs or not self.steps:
            return
        add_to_log(state, logs, {"tokens_per_second": round(self.tokens_per_step * self.steps / self.seconds, 1)})
        self.seconds, self.steps = 0.0, 0

    def tokens_per_second(self):
        """Over all steps of this process, or None when it made none."""
        return self.tokens_per_step * self.total_steps / self.total_seconds if self.total_steps else None


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
