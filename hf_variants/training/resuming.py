"""Going on from a checkpoint, also from one that was written at the very last step.

Notable here: Trainer counts a step before it asks whether it was the last, so that a run which was killed between its last
checkpoint and its end would train one step too many; such a run is ended where its weights and state are loaded.
"""

from transformers import TrainerCallback


class _AlreadyTrained(Exception):
    pass


class _EndCallback(TrainerCallback):
    """Leaves `train` once the checkpoint is loaded, where it holds the last step."""

    def on_train_begin(self, args, state, control, **kwargs):
        if 0 < state.max_steps <= state.global_step:
            raise _AlreadyTrained


def train_from(trainer, checkpoint):
    """`trainer.train(resume_from_checkpoint=checkpoint)`, which makes no step where the checkpoint is of the last one."""
    callback = _EndCallback()
    trainer.callback_handler.callbacks.insert(0, callback)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except _AlreadyTrained:
        pass
    finally:
        trainer.remove_callback(callback)
