"""`hf-variants ablate`: see `ablation.run`, which does it all."""

from ..ablation.run import ablate

__all__ = ["ablate"]
