"""Whether a model in memory is still what its config builds: weights alone do not show a config that was changed afterwards, a
layer that was exchanged, or a class that computes otherwise.

Notable here: the model is not run. It is compared, module by module, with one that its config builds without weights: the code
that runs, the numbers and words that each module keeps, and its constants (RoPE frequencies).
"""

import torch

# What no result depends on, what dropout does, what follows the weights or is moved along by the library.
_LIVE = {"training", "layer_idx", "gradient_checkpointing", "name_or_path", "padding_idx", "p"}
_LIVE |= {"vocab_size", "num_embeddings", "out_features", "max_seq_len_cached"}
_PLAIN = (bool, int, float, str, tuple)
_SHOWN = 4


def refuse_other_build(model, plain, deep=True):
    """Raise ValueError where `model` computes otherwise than what its config builds.

    Args:
        plain: what the config builds, without weights (`skeletons.skeleton`).
        deep: whether values and constants are compared too, not the code alone.
    """
    mine, found = dict(model.named_modules()), []
    for name, meant in plain.named_modules():
        module = mine.get(name)
        if module is None:
            continue
        if type(module).forward is not type(meant).forward:
            found.append(f"{name or 'it'} runs the forward of {_full(module)} instead of {_full(meant)}")
        elif deep:
            found += [f"{name}.{text}" if name else text for text in _other_values(module, meant)]
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ValueError(
            f"{type(model).__name__} computes otherwise than what its config builds: {'; '.join(found[:_SHOWN])}{more}. "
            "Convert a model that was built from the config it has, by the class of the library"
        )


def _full(module):
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _other_values(module, meant):
    for key, value in vars(meant).items():
        if key.startswith("_") or key in _LIVE or "drop" in key or not isinstance(value, _PLAIN):
            continue
        held = vars(module).get(key, value)
        if type(held) is type(value) and held != value:
            yield f"{key} is {held!r} instead of {value!r}"
    for key in meant._non_persistent_buffers_set:
        value, held = meant._buffers.get(key), module._buffers.get(key)
        # a table that is moved along with the length of what was read has its first state beside it
        if value is None or held is None or f"original_{key}" in module._buffers or _moves(key, module):
            continue
        if value.shape == held.shape and not _close(value, held):
            yield f"{key} holds other numbers"


def _moves(key, module):
    return key.endswith("_inv_freq") and key.replace("_inv_freq", "_original_inv_freq") in module._buffers


def _close(value, held):
    """Whether two constants are one up to the dtype of either."""
    if not value.is_floating_point():
        return torch.equal(value, held.to(value.device))
    coarse = max(torch.finfo(value.dtype).eps, torch.finfo(held.dtype).eps)
    return torch.allclose(value.float(), held.to(value.device).float(), rtol=8 * coarse, atol=8 * coarse)
