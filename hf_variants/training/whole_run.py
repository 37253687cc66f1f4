"""The frame of every training run: go on from the last good checkpoint, then save the finished model.

Notable here: pretraining, fine-tuning and pairs of texts share it, so that all of them survive the same accidents.
"""

import time
from pathlib import Path

from .checkpoints import last_good_checkpoint
from .processes import together
from .resuming import train_from
from .saves import saving
from .stages import write_json


def train_on(trainer, announce, check=lambda checkpoint: None):
    """Train from the last good checkpoint in the trainer's output_dir, where there is one; returns the seconds it took.

    Args:
        check: called with the checkpoint before, to refuse it.
    """
    arguments = trainer.args
    if arguments.max_steps > 0 and arguments.num_train_epochs != type(arguments).num_train_epochs:
        announce(
            f"trainer.num_train_epochs={arguments.num_train_epochs:g} is unused, since trainer.max_steps="
            f"{arguments.max_steps} is given"
        )
    resume = last_good_checkpoint(trainer.args.output_dir)
    if resume is not None:
        check(resume)
        announce(f"training: continues from {resume}")
    began = time.perf_counter()
    train_from(trainer, resume)
    return time.perf_counter() - began


def save_finished(trainer, tokenizer):
    """Write model, tokenizer and training_log.json into the trainer's output_dir; all processes call it together."""
    folder = Path(trainer.args.output_dir)
    # the others read these files next
    with together(), saving(f"the final model in {folder}", folder):
        trainer.save_model()
        if trainer.is_world_process_zero():
            # A pickle that only Trainer reads; the recipe in stage.json says the same and travels safely.
            (folder / "training_args.bin").unlink(missing_ok=True)
            tokenizer.save_pretrained(folder)
            write_json(folder / "training_log.json", trainer.state.log_history)
