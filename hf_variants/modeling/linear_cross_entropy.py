"""Cross-entropy of a linear head, fused with it: gradients are taken while a chunk of logits is at hand.

Notable here: the logits of a chunk are made once, turned in place into the gradient of the loss, multiplied into the gradients
of states and head, and overwritten by the next chunk; no pass recomputes them and none holds more than a chunk (the idea of
Liger Kernel, arXiv:2410.10989 §3.2). On a CPU the softmax runs over a few rows at a time, which stay in its cache, and tokens
without a label are left out of every product. The backward pass only multiplies by the incoming gradient. Heads that are more
than a plain `nn.Linear` take the general way of `losses.py`.
"""

import torch
from transformers.utils.import_utils import is_tracing

from .logit_chunks import chunk_rows
from .losses import IGNORE
from .plain_linear import in_autocast_dtype
from .products import input_gradient, is_served, onednn_linear

# how many numbers of a chunk of logits a CPU turns into gradients at a time
CACHED_ELEMENTS = 1 << 19


class LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of `softcap((states W^T + b) / scaling)` against targets.

    Shapes: states [N, H], weight [V, H], bias [V] or None, targets [N] with -100 where nothing is scored.
    """

    @staticmethod
    def forward(ctx, states, weight, bias, targets, scaling, softcap):
        rules = (scaling, softcap, ctx.needs_input_grad[:3])
        total, grads = _loss_and_gradients(states, weight, bias, targets, *rules)
        ctx.save_for_backward(states, weight, bias, targets)
        ctx.grads, ctx.rules = grads, rules
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_total):
        inputs = ctx.saved_tensors
        # a second pass through a graph that was kept makes them again: the first took them with it
        grads = ctx.grads if ctx.grads is not None else _loss_and_gradients(*inputs, *ctx.rules)[1]
        ctx.grads = None
        scaled = (
            None if grad is None else grad.mul_(grad_total).to(tensor.dtype)
            for grad, tensor in zip(grads, inputs, strict=False)
        )
        return *scaled, None, None, None


def _loss_and_gradients(states, weight, bias, targets, scaling, softcap, wants):
    """The summed loss, and its gradients (states, weight, bias) where `wants` says so, else None."""
    chosen = _labelled(targets)
    rows, kept = (states, targets) if chosen is None else (states[chosen], targets[chosen])
    rows, head, offset = in_autocast_dtype(rows, weight, bias)
    grad_rows = torch.empty_like(rows) if wants[0] else None
    grad_head, grad_offset = _ProductSum(weight.shape, rows), torch.zeros_like(weight[:, 0], dtype=torch.float32)
    total = torch.zeros((), dtype=torch.float32, device=states.device)
    device = "cpu" if rows.device.type == "cpu" else "cuda"
    step = chunk_rows(rows.shape[0], *weight.shape, rows.element_size(), device, wants[1])
    multiply = _multiplier(rows, head, step)
    for start in range(0, rows.shape[0], step):
        part = rows[start : start + step]
        logits = multiply(part)
        if offset is not None:
            logits += offset
        total += _turn_into_gradient(logits, kept[start : start + step], scaling, softcap)
        if wants[0]:
            grad_rows[start : start + step] = input_gradient(logits, head)
        if wants[1]:
            grad_head.add(logits, part)
        if wants[2]:
            grad_offset += logits.sum(0, dtype=torch.float32)
        del logits
    if wants[0] and chosen is not None:
        grad_rows = torch.zeros_like(states, dtype=rows.dtype).index_copy_(0, chosen, grad_rows)
    return total, (grad_rows, grad_head.value() if wants[1] else None, grad_offset if wants[2] else None)


def _multiplier(rows, head, step):
    """States [n, H] -> logits [n, V], in the same memory for every chunk where the kernel allows it."""
    if is_tracing(rows):
        return lambda part: part @ head.t()
    if is_served(rows, head):
        return lambda part: onednn_linear(part, head)
    buffer = rows.new_empty(min(step, rows.shape[0]), head.shape[0])
    return lambda part: torch.mm(part, head.t(), out=buffer[: part.shape[0]])


def _labelled(targets):
    """Indices of the tokens with a label, where enough have none to be worth leaving out; else None."""
    if targets.device.type != "cpu" or is_tracing(targets):
        return None
    chosen = (targets != IGNORE).nonzero().squeeze(1)
    return chosen if chosen.numel() < 0.9 * targets.numel() else None


class _ProductSum:
    """A sum of products a^T b: one alone stays in their dtype, several are added up in fp32."""

    def __init__(self, shape, like):
        self.shape, self.like, self.total = shape, like, None

    def add(self, left, right):
        if self.total is None:
            self.total = left.t() @ right
        elif right.dtype in _WIDE:
            self.total.addmm_(left.t(), right)
        else:
            self.total = self.total.float()
            self.total += left.t() @ right

    def value(self):
        return self.like.new_zeros(self.shape) if self.total is None else self.total


_WIDE = (torch.float32, torch.float64)


def _turn_into_gradient(logits, targets, scaling, softcap):
    """The summed loss of a chunk of logits [n, V], which become its gradient before scaling and soft-cap, in place."""
    step = logits.shape[0]
    if logits.device.type == "cpu" and not is_tracing(logits):
        step = max(1, CACHED_ELEMENTS // logits.shape[1])
    losses = [
        _turn_rows(block, part, scaling, softcap) for block, part in zip(logits.split(step), targets.split(step), strict=True)
    ]
    return torch.stack(losses).sum()


def _turn_rows(logits, targets, scaling, softcap):
    x = logits if logits.dtype in _WIDE else logits.float()
    if scaling != 1:
        x.div_(scaling)
    tanh = None
    if softcap is not None:
        tanh = torch.tanh(x.div_(softcap))
        torch.mul(tanh, softcap, out=x)
    kept = (targets != IGNORE).unsqueeze(1).to(x.dtype)
    index = targets.clamp(min=0).unsqueeze(1)
    picked, top = x.gather(1, index), x.amax(dim=1, keepdim=True)
    x.sub_(top).exp_()
    normaliser = x.sum(dim=1, keepdim=True)
    loss = ((normaliser.log() + top - picked) * kept).sum()
    x.mul_(kept / normaliser).scatter_add_(1, index, -kept)
    if tanh is not None:
        x.mul_(1 - tanh * tanh)
    if scaling != 1:
        x.div_(scaling)
    if x is not logits:
        logits.copy_(x)
    return loss
