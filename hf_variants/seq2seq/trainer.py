"""VariantsTrainer that also writes held-out targets at every evaluation.

Notable here: the numbers stand among Trainer's own (`eval_bleu`), so the best model can be chosen by them; the random state of
training is kept.
"""

from ..training.sampling import random_state_kept
from ..training.trainer import VariantsTrainer
from .writing import measured, write_texts

NUMBERS = ("exact_match", "bleu", "chrf")


class PairsTrainer(VariantsTrainer):
    """Args beside Trainer's: `sources` and `targets`, held-out texts to write at every evaluation, by the `GenerationConfig`
    keys in `options`.
    """

    def __init__(self, *args, sources=(), targets=(), options=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.sources, self.targets, self.options = list(sources), list(targets), options

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self.sources:
            model = self.accelerator.unwrap_model(self.model)
            with random_state_kept(self.args.seed):
                size = self.args.per_device_eval_batch_size
                texts = write_texts(model, self.processing_class, self.sources, self.options, size)
            values = measured(texts, self.targets)
            output.metrics.update({f"{metric_key_prefix}_{name}": values[name] for name in NUMBERS})
        return output
