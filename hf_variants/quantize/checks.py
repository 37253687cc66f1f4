"""Everything that can be refused before the work begins: bit widths, group sizes, shapes, names."""

import fnmatch
from difflib import get_close_matches

import torch

from .formats import GROUP_SIZES


def resolve_names(patterns, names):
    """Full names matched by exact names or `fnmatch` patterns.

    Raises:
        ValueError: for a pattern that matches nothing, naming the nearest module.
    """
    check_pattern_list(patterns)
    found = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatch.fnmatchcase(name, pattern)}
        if not matched:
            close = get_close_matches(pattern, names, n=1, cutoff=0.0)
            raise ValueError(
                f"leave_unquantized={pattern!r} matches no quantisable module (did you mean {close[0]!r}?)"
                if close
                else f"leave_unquantized={pattern!r} matches no quantisable module"
            )
        found |= matched
    return frozenset(found)


def check_shapes(linears, group_size, form):
    """Raise ValueError naming every Linear ({full name: module}) whose shape a `Format` cannot hold, with what would work."""
    lines = []
    for name, module in linears.items():
        if group_size != -1 and module.in_features % group_size:
            lines.append(f"{name}: in_features={module.in_features} is not a multiple of group_size={group_size}")
        elif module.in_features % form.in_multiple:
            lines.append(f"{name}: in_features={module.in_features} is not a multiple of {form.in_multiple}")
    by_group = bool(lines)
    odd = [n for n, m in linears.items() if m.out_features % form.out_multiple]
    lines += [f"{n}: out_features={linears[n].out_features} is not a multiple of {form.out_multiple}" for n in odd]
    if not lines:
        return
    shown = lines[:12] + ([f"... and {len(lines) - 12} more"] if len(lines) > 12 else [])
    fitting = all(m.in_features % form.in_multiple == 0 for m in linears.values())
    works = [
        g for g in GROUP_SIZES if g == -1 and fitting or g != -1 and all(m.in_features % g == 0 for m in linears.values())
    ]
    advice = f"group sizes that divide every in_features: {works}" if by_group and works else "no group size helps"
    raise ValueError(
        f"these modules cannot be stored in the {form.name} format; "
        f"{advice}; or name them in leave_unquantized to keep them as they are: " + "; ".join(shown)
    )


def check_pattern_list(patterns):
    """Raise ValueError for a single string, whose letters would be taken for patterns."""
    if isinstance(patterns, str):
        raise ValueError(f"leave_unquantized={patterns!r} is a string; give a list of names or patterns: [{patterns!r}]")


def check_some_left(linears, kept):
    """Raise ValueError where nothing is left to quantise, which would be written as if it were."""
    if not linears:
        raise ValueError(
            f"leave_unquantized (or room by max_bytes) leaves all {len(kept)} matrices dense, so nothing would be quantised; "
            "leave fewer, or keep the checkpoint as it is"
        )


def check_finite_weights(model):
    """Raise ValueError naming the first parameter that holds NaN or infinity."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise ValueError(f"{name} holds NaN or infinite values, which no scale can represent; mend the checkpoint first")


def in_storage(name, tensor, dtype):
    """`tensor` in the dtype in which it is stored. Raises ValueError where that cannot hold its values."""
    stored = tensor.to(dtype)
    if not torch.isfinite(stored).all():
        raise ValueError(
            f"{name} holds values up to {float(tensor.abs().max()):.4g}, which are infinite in {dtype}; choose "
            "dtype=torch.bfloat16 or torch.float32"
        )
    return stored


def check_not_quantized(model):
    """Raise ValueError when the model is quantised already."""
    refuse_quantized_config(model.config)


def check_predicts_next(config, eval_ids):
    """Raise ValueError where perplexities were asked for of a model that does not predict the next token."""
    if eval_ids is not None and not config.is_causal:
        raise ValueError(
            "eval_ids asks for perplexities of the next token, which a model with is_causal=False does not predict; leave it "
            "out"
        )


def refuse_quantized_config(config):
    """Raise ValueError when a config says that its weights are quantised."""
    found = getattr(config, "quantization_config", None)
    if found is not None:
        method = found.get("quant_method") if isinstance(found, dict) else found.quant_method
        raise ValueError(
            f"the model is already quantised (quant_method={str(getattr(method, 'value', method))!r}); give the model in full "
            "precision"
        )
