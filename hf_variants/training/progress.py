"""Trainer's progress bar with one short line per log, instead of a dict of every number."""

from transformers.trainer_callback import ProgressCallback

# What a reader watches, in order: (key of the log, how it is shown). The rest is in training_log.json and the trackers.
_SHOWN = (
    ("loss", "loss {:.3f}"),
    ("eval_loss", "held-out loss {:.3f}"),
    ("eval_perplexity", "held-out perplexity {:.2f}"),
    ("aux_loss", "aux {:.3f}"),
    ("z_loss", "z {:.3f}"),
    ("learning_rate", "lr {:.2e}"),
    ("grad_norm", "gradient {:.2f}"),
    ("tokens_per_second", "{:,.0f} tokens/s"),
    ("mfu", "MFU {:.1%}"),
    ("eta_seconds", "{:,.0f} s left"),
    ("expert_load_min", "expert load {:.2f}"),
    ("expert_load_max", "to {:.2f}"),
)


class ShortProgressCallback(ProgressCallback):
    """ProgressCallback whose lines name the step and the numbers that a reader watches."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        line = short_line(state, logs or {})
        if state.is_world_process_zero and self.training_bar is not None and line:
            self.training_bar.write(line)


def shorten_progress(trainer):
    """One short line per log instead of a dict, where a trainer shows a progress bar."""
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(ShortProgressCallback)


def short_line(state, logs):
    """`step 250/1000: loss 3.912, lr 1.20e-03, ...`, or an empty string where nothing is worth a line."""
    parts = [text.format(float(logs[key])) for key, text in _SHOWN if logs.get(key) is not None]
    return f"step {state.global_step}/{state.max_steps}: {', '.join(parts)}".replace(", to ", " to ") if parts else ""
