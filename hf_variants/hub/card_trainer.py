"""Keeps the card and the code in what HF's Trainer uploads.

Notable here: `Trainer.create_model_card` writes over README.md between saving the model and uploading the folder, and
`Trainer._push_from_checkpoint` copies weights but no code into that folder. Neither calls the model in between and no
callback runs there, so both methods are wrapped, once, for models of the family alone.
"""

import sys
from functools import wraps


def keep_card_of_trainer():
    """Wrap the Trainer where this process uses one. Called on each save, which every upload of a Trainer begins with."""
    module = sys.modules.get("transformers.trainer")
    trainer_class = getattr(module, "Trainer", None)
    if trainer_class is None or getattr(trainer_class.create_model_card, "keeps_variants_card", False):
        return
    _wrap(trainer_class, "create_model_card", after=True)
    if hasattr(trainer_class, "_push_from_checkpoint"):
        _wrap(trainer_class, "_push_from_checkpoint", after=False)


def _wrap(trainer_class, name, after):
    original = getattr(trainer_class, name)

    @wraps(original)
    def wrapped(self, *args, **kwargs):
        if not after:
            complete_upload(self)
        result = original(self, *args, **kwargs)
        if after:
            complete_upload(self)
        return result

    wrapped.keeps_variants_card = True
    setattr(trainer_class, name, wrapped)


def complete_upload(trainer):
    """Put code and card into the folder that `trainer` uploads, where its model is one of the family."""
    from ..modeling.variants_base import VariantsPreTrainedModel

    model = trainer.accelerator.unwrap_model(trainer.model)
    if isinstance(model, VariantsPreTrainedModel) and trainer.is_world_process_zero():
        model.complete_folder(trainer.args.output_dir, trainer.hub_model_id)
