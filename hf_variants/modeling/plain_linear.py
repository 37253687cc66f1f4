"""What decides whether a faster or leaner form of a linear layer may stand in for its call.

Notable here: in doubt the layer is called. An adapter, a quantizer, a shard or a hook changes what a call does, and none of
them announces itself in the same way.
"""

import torch
from torch import nn
from transformers.utils.import_utils import is_tracing


def is_plain_linear(layer):
    """Whether `layer` is an `nn.Linear` whose whole weight is at hand: no adapter, quantizer, shard or hook between."""
    if type(layer) is not nn.Linear or type(layer.weight) is not nn.Parameter:
        return False
    if is_hooked(layer):
        return False
    return tuple(layer.weight.shape) == (layer.out_features, layer.in_features)


def is_hooked(module):
    """Whether something hangs on a call of `module` itself, or on that of every module."""
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    changed = hooked or "forward" in module.__dict__ or hasattr(module, "_hf_hook")
    return bool(changed) or torch.nn.modules.module._has_any_global_hook()


def records_gradients(*tensors):
    """Whether autograd would keep something for these, in a pass that is run and not traced."""
    wanted = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return wanted and not is_tracing(tensors[0])


def in_autocast_dtype(*tensors):
    """The tensors as autocast hands them to torch's own products; None stays None."""
    device = tensors[0].device.type
    # asked of a device without autocast ("meta"), torch raises
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensors
    return tuple(None if part is None else part.to(torch.get_autocast_dtype(device)) for part in tensors)
