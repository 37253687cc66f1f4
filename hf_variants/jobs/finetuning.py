"""`hf-variants finetune`: see `finetune.run`, which does it all."""

from ..finetune.run import finetune

__all__ = ["finetune"]
