"""HF's Trainer with two differences: which parameters decay, and rows that carry positions.

Notable here: everything else (mixed precision, FSDP, DeepSpeed, Hub, trackers) is Trainer's own and is set by its own
arguments.
"""

import torch
from torch import nn
from transformers import Trainer


class VariantsTrainer(Trainer):
    """Trainer whose weight decay touches matrices alone: no norm, no bias, no embedding (tied head included)."""

    def get_decay_parameter_names(self, model):
        return decay_parameter_names(model)


def decay_parameter_names(model):
    """Names of the parameters that weight decay pulls towards zero.

    Norm gains and biases have one or few numbers per channel and no scale redundancy; an embedding row sees a gradient
    only when its token occurs, so decay would shrink rare tokens alone (GPT-3 and Llama decay neither).
    """
    excluded = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding) or "norm" in type(module).__name__.lower():
            excluded.update(id(parameter) for parameter in module.parameters(recurse=False))
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2 and id(parameter) not in excluded and "bias" not in name.rsplit(".", 1)[-1]
    ]


def collate_rows(rows):
    """Stack packed rows into int64 tensors [B, T]; rows are stored as int32 to halve the cache."""
    return {name: torch.stack([torch.as_tensor(row[name]) for row in rows]).long() for name in rows[0]}
