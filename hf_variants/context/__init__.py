"""Longer contexts: rescale RoPE, prove that it took effect, compare the methods, fine-tune the chosen one.

Notable here: names are resolved on first use, so that reading a recipe does not import torch.
"""

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

__all__ = list(_WHERE)


def __getattr__(name):
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
