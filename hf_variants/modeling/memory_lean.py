"""Norms and gated feed-forwards that keep their inputs for the backward pass and compute the rest again.

What autograd would keep of a gated feed-forward is its input, gate, up, act(gate) and act(gate) * up; the last two are made
again here from gate and up, element by element, and no matrix product is repeated. Of an RMSNorm only the input is kept, which
the residual stream holds anyway.

Notable here: gradients are those of the plain form; asked for a graph of the gradient (`create_graph=True`, torch.func), they
are taken through the plain form itself. Who may use these is decided where they are called: layers that are more than an
`nn.Linear` (adapters, quantizers, hooks, shards) and traced graphs, whose compiler chooses what to keep, take the plain form.
"""

import torch
from torch.nn.functional import linear

from .products import input_gradient


def through(plain, inputs, grad):
    """Gradients of `plain(*inputs)` that can be differentiated again; None where an input wants none."""
    with torch.enable_grad():
        out = plain(*inputs)
    wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True, allow_unused=True))
    return tuple(next(found) if tensor is not None and tensor.requires_grad else None for tensor in inputs)


class RMSNormFunction(torch.autograd.Function):
    """`plain(x, weight)`, an RMSNorm of [..., dim], with the gradient written out.

    offset is added to the weight before it multiplies (1 where it is stored minus one).
    """

    @staticmethod
    def forward(ctx, x, weight, eps, offset, plain):
        ctx.save_for_backward(x, weight)
        ctx.rules = (eps, offset, plain)
        return plain(x, weight)

    @staticmethod
    def backward(ctx, grad):
        (x, weight), (eps, offset, plain) = ctx.saved_tensors, ctx.rules
        if torch.is_grad_enabled():
            return *through(plain, (x, weight), grad), None, None, None
        wide, grad = x.float(), grad.float()
        inverse = (wide.square().mean(-1, keepdim=True) + eps).rsqrt_()
        # y = x r w with r = 1 / rms: dx = r (g w - x r^2 mean(g w x)), dw = sum(g x r)
        products = grad * wide
        grad_weight = None
        if weight is not None and ctx.needs_input_grad[1]:
            grad_weight = (products.flatten(0, -2).t() @ inverse.flatten()).to(weight.dtype)
        if not ctx.needs_input_grad[0]:
            return None, grad_weight, None, None, None
        scale = None if weight is None else weight.float() + offset
        mean = products.mean(-1) if scale is None else products @ (scale / scale.numel())
        grad_x = grad if scale is None else torch.mul(grad, scale, out=products)
        grad_x = torch.addcmul(grad_x, wide, mean.unsqueeze(-1) * inverse.square(), value=-1).mul_(inverse)
        return grad_x.to(x.dtype), grad_weight, None, None, None


class GatedMLPFunction(torch.autograd.Function):
    """down(combine(gate(x), up(x))) of plain linear layers; x [..., hidden], weights and biases (or None) as theirs.

    product: (x, weight, bias) -> x W^T + b, for the forward pass.
    """

    @staticmethod
    def forward(ctx, combine, product, x, gate_weight, gate_bias, up_weight, up_bias, down_weight, down_bias):
        gate, up = product(x, gate_weight, gate_bias), product(x, up_weight, up_bias)
        ctx.save_for_backward(x, gate_weight, gate_bias, up_weight, up_bias, down_weight, down_bias, gate, up)
        ctx.combine = combine
        return product(combine(gate, up), down_weight, down_bias)

    @staticmethod
    def backward(ctx, grad):
        *inputs, gate, up = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, *through(lambda *given: gated_mlp(ctx.combine, *given), inputs, grad)
        x, gate_weight, _, up_weight, _, down_weight, _ = inputs
        wants = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
            inner = ctx.combine(gate, up)
        grad = grad.flatten(0, -2)
        grad_down = grad.t() @ inner.detach().flatten(0, -2) if wants[5] else None
        grad_inner = input_gradient(grad, down_weight).view_as(inner)
        grad_gate, grad_up = (part.flatten(0, -2) for part in torch.autograd.grad(inner, (gate, up), grad_inner))
        del inner, grad_inner
        flat = x.flatten(0, -2)
        grad_x = None
        if wants[0]:
            grad_x = input_gradient(grad_gate, gate_weight).add_(input_gradient(grad_up, up_weight)).view_as(x)
        return (
            None,
            None,
            grad_x,
            grad_gate.t() @ flat if wants[1] else None,
            grad_gate.sum(0) if wants[2] else None,
            grad_up.t() @ flat if wants[3] else None,
            grad_up.sum(0) if wants[4] else None,
            grad_down,
            grad.sum(0) if wants[6] else None,
        )


def gated_mlp(combine, x, gate_weight, gate_bias, up_weight, up_bias, down_weight, down_bias):
    """The plain form of `GatedMLPFunction`."""
    return linear(combine(linear(x, gate_weight, gate_bias), linear(x, up_weight, up_bias)), down_weight, down_bias)
