"""Longer contexts: rescale RoPE, prove that it took effect, compare the methods, fine-tune the chosen one.

Notable here: names are resolved on first use, so that reading a recipe does not import torch.
"""

from ..lazy_names import lazy_names

_WHERE = {
    "METHODS": "scaling",
    "ExtendSpec": "extend_spec",
    "ScalingReport": "verify",
    "compare_scalings": "compare",
    "expected_rotation": "frequencies",
    "extend_context": "extend",
    "original_length": "scaling",
    "perplexity_by_position": "compare",
    "scale_rope": "scaling",
    "scaled_model": "rope_swap",
    "verify_scaling": "verify",
    "with_config": "rope_swap",
}

__all__, __getattr__ = lazy_names(__name__, _WHERE)
