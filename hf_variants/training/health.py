"""Which layer first produced a number that is none: found by running the batch that showed it once more.

    forward   embed_tokens ok | layers.0 ok | layers.1.mlp.down_proj inf  <- named | layers.2 nan ...
    backward  layers.0 nan | layers.1 nan | layers.2.self_attn.q_proj nan  <- named | layers.3 ok

Notable here: costs nothing until something is wrong; weights are looked at first, because a broken weight makes every later
output look guilty.
"""

from contextlib import ExitStack

import torch


def first_broken_weight(model):
    """Name of the first parameter that holds NaN or infinity, or None."""
    return next((name for name, weight in model.named_parameters() if not _finite(weight)), None)


@torch.no_grad()
def first_broken_output(model, batch):
    """Name of the first module, in order of execution, whose output is not finite for a batch, or None."""
    found = []

    def look(name):
        def hook(module, inputs, output):
            if not found and not all(_finite(tensor) for tensor in _tensors(output)):
                found.append(name)

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            # containers answer after their parts, so the innermost module is named
            stack.callback(module.register_forward_hook(look(name or type(module).__name__)).remove)
        model(**batch)
    return found[0] if found else None


def first_broken_gradient(model, batch):
    """Name of the parameter nearest to the loss whose gradient is not finite for a batch, or None.

    Gradients flow from the last layer to the first, so the last such parameter is where the trouble began.
    """
    model.zero_grad(set_to_none=True)
    model(**batch).loss.backward()
    broken = [name for name, weight in model.named_parameters() if weight.grad is not None and not _finite(weight.grad)]
    model.zero_grad(set_to_none=True)
    # a tied head shares the first parameter, which every gradient reaches
    inner = [name for name in broken if "embed" not in name]
    return (inner or broken)[-1] if broken else None


def locate(model, batches):
    """What is known about the origin of a number that is none, in words.

    Args:
        model: the bare model, not wrapped for several processes.
        batches: the micro-batches of the step (dicts of tensors on the device of the model).
    """
    weight = first_broken_weight(model)
    if weight is not None:
        return f"the weight {weight} is not finite"
    for batch in batches:
        module = first_broken_output(model, batch)
        if module is not None:
            return f"the first output that is not finite is that of {module}"
    for batch in batches:
        parameter = first_broken_gradient(model, batch)
        if parameter is not None:
            return f"the first gradient that is not finite is that of {parameter}"
    return "the same batch gave finite numbers when it was run again"


def _finite(tensor):
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []
