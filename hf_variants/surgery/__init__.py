"""Changes to trained weights that a toggle alone cannot make."""

from .kv_heads import KVHeadsReport, kv_heads

__all__ = ["KVHeadsReport", "kv_heads"]
