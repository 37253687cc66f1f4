"""What the attention of a model does: entropy, sinks, logits, redundant heads, and how far it sees; what images cost, how
close they come to words, and how text attends to them.
"""

from .alignment import alignment
from .attention_report import AttentionReport, attention_report, attention_reports
from .image_attention import LayerReading, image_attention
from .image_cost import ImageCost, count_image_cost, measure_seconds, prompt_of
from .observed import observe_attention
from .receptive_field import ReceptiveField, predicted_reach, receptive_field

__all__ = [
    "AttentionReport",
    "ImageCost",
    "LayerReading",
    "ReceptiveField",
    "alignment",
    "attention_report",
    "attention_reports",
    "count_image_cost",
    "image_attention",
    "measure_seconds",
    "observe_attention",
    "predicted_reach",
    "prompt_of",
    "receptive_field",
]
