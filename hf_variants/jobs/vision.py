"""`hf-variants vision-language`: see `vision_language.run`, which does it all."""

from ..vision_language.run import vision_language

__all__ = ["vision_language"]
