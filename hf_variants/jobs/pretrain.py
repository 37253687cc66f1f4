"""`hf-variants pretrain`: see `training.pretrain`, which does it all."""

from ..training.pretrain import pretrain

__all__ = ["pretrain"]
