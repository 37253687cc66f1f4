"""Longer contexts: rescale RoPE, prove that it took effect, compare the methods, fine-tune the chosen one."""

from .compare import compare_scalings, perplexity_by_position
from .extend import ExtendSpec, extend_context
from .frequencies import expected_rotation
from .rope_swap import scaled_model, with_config
from .scaling import METHODS, original_length, scale_rope
from .verify import ScalingReport, verify_scaling

__all__ = [
    "METHODS",
    "ExtendSpec",
    "ScalingReport",
    "compare_scalings",
    "expected_rotation",
    "extend_context",
    "original_length",
    "perplexity_by_position",
    "scale_rope",
    "scaled_model",
    "verify_scaling",
    "with_config",
]
