"""The attention backends by the names that `attn_implementation` takes."""

from .attention_scores import eager_attention
from .flex_backend import flex_attention
from .fused_attention import sdpa_attention

ATTENTION_FUNCTIONS = {"eager": eager_attention, "sdpa": sdpa_attention, "flex_attention": flex_attention}


def attention_function(name):
    """The backend of that name. Raises ValueError for one that the family has not been made exact on."""
    if name not in ATTENTION_FUNCTIONS:
        raise ValueError(
            f"attn_implementation={name!r} is not supported by this family, whose toggles it could drop; choose from "
            f"{list(ATTENTION_FUNCTIONS)}"
        )
    return ATTENTION_FUNCTIONS[name]
