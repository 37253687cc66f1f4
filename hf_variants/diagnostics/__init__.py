"""What the attention of a model does: entropy, sinks, logits, redundant heads, and how far it sees."""

from .attention_report import AttentionReport, attention_report
from .observed import observe_attention
from .receptive_field import ReceptiveField, predicted_reach, receptive_field

__all__ = [
    "AttentionReport",
    "ReceptiveField",
    "attention_report",
    "observe_attention",
    "predicted_reach",
    "receptive_field",
]
