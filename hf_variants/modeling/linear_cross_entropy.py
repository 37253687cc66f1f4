"""Cross-entropy of a linear head, fused with it: gradients are taken while a chunk of logits is at hand.

Notable here: the logits of a chunk are made once, turned into the loss and into the gradients of states and head, and dropped;
no pass recomputes them and none holds more than a chunk (the idea of Liger Kernel, arXiv:2410.10989 §3.2). The backward pass
only multiplies by the incoming gradient. Heads that are more than a plain `nn.Linear` take the general way of `losses.py`.
"""

import torch
from torch import nn

from .losses import IGNORE


def is_plain_linear(head):
    """Whether `head` is an `nn.Linear` whose whole weight is at hand: no adapter, quantizer, shard or hook between."""
    if type(head) is not nn.Linear or type(head.weight) is not nn.Parameter or hasattr(head, "_hf_hook"):
        return False
    hooked = head._forward_hooks or head._forward_pre_hooks or head._backward_hooks
    return not hooked and tuple(head.weight.shape) == (head.out_features, head.in_features)


class LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of `softcap((states W^T + b) / scaling)` against targets.

    Shapes: states [N, H], weight [V, H], bias [V] or None, targets [N] with -100 where nothing is scored.
    """

    @staticmethod
    def forward(ctx, states, weight, bias, targets, scaling, softcap, rows):
        wants = ctx.needs_input_grad[:3]
        grads = [
            torch.empty_like(states) if wants[0] else None,
            torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if wants[1] else None,
            torch.zeros(bias.shape, dtype=torch.float32, device=bias.device) if bias is not None and wants[2] else None,
        ]
        total = torch.zeros((), dtype=torch.float32, device=states.device)
        for start in range(0, states.shape[0], rows):
            part = slice(start, start + rows)
            loss, grad_logits = _chunk(states[part], weight, bias, targets[part], scaling, softcap, any(wants))
            total += loss
            if grads[0] is not None:
                grads[0][part] = grad_logits @ weight
            if grads[1] is not None:
                grads[1] += grad_logits.t() @ states[part]
            if grads[2] is not None:
                grads[2] += grad_logits.sum(0, dtype=torch.float32)
        ctx.save_for_backward(*grads)
        ctx.dtypes = (states.dtype, weight.dtype, None if bias is None else bias.dtype)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_total):
        scaled = (
            None if grad is None else (grad * grad_total).to(dtype)
            for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *scaled, None, None, None, None


def _chunk(states, weight, bias, targets, scaling, softcap, wants_grad):
    """Loss of one chunk, and the gradient of its logits before scaling and soft-cap in the states' dtype."""
    logits = nn.functional.linear(states, weight, bias).float() / scaling
    tanh = None
    if softcap is not None:
        tanh = torch.tanh(logits / softcap)
        logits = tanh * softcap
    kept = targets != IGNORE
    index = targets.clamp(min=0).unsqueeze(1)
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    loss = ((normaliser - logits.gather(1, index)).squeeze(1) * kept).sum()
    if not wants_grad:
        return loss, None
    grad = (logits - normaliser).exp_()
    grad.scatter_add_(1, index, torch.full_like(normaliser, -1.0))
    grad *= kept.unsqueeze(1)
    if tanh is not None:
        grad *= 1 - tanh * tanh
    return loss, (grad / scaling).to(states.dtype)
