"""`hf-variants extend`: see `context.extend_context`, which does it all."""

from ..context.extend import extend_context as extend

__all__ = ["extend"]
