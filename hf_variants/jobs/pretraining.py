"""`hf-variants pretrain`: see `training.pretraining`, which does it all."""

from ..training.pretraining import pretrain

__all__ = ["pretrain"]
