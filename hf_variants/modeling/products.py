"""Which kernel multiplies a linear layer in fp32 on a CPU: torch's own choice, or a faster one with the same numbers.

Measured on AVX-512 processors of AMD with torch's MKL and oneDNN: MKL reads the weight for one row of input at about 11 GB/s
where the memory gives 24, but for two rows, written as W x^T, at 17; from five rows on oneDNN is ahead, by a tenth for many
rows, by a third where the weight is as large as a head. So a single row is multiplied twice, and the copy dropped.

Notable here: sums are taken in another order, so results differ by rounding alone (about 1e-6 of the largest). What compares
whole forwards must not see even that: outside of training only products of a few rows are served, which is decoding. Which
kernel runs depends on shapes and processor, never on a measurement, so runs repeat bitwise. Anything that is not a plain fp32
`nn.Linear` on such a processor is called as it is.
"""

from functools import lru_cache
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import linear
from transformers.utils.import_utils import is_tracing

from .plain_linear import is_plain_linear, records_gradients

# Rows up to which W x^T is ahead, and up to which a head is (products of whole prompts stay with torch).
FEW, SOME = 4, 64
# Numbers of a weight from which it does not stay in a cache, so that how it is read decides; and from which it is a head.
SMALLEST, LARGE = 1 << 15, 1 << 22


@lru_cache(maxsize=1)
def prefers_other_kernels():
    """Whether this is a processor that torch's default BLAS is not tuned for, and oneDNN is at hand."""
    try:
        vendor = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("vendor_id"))
    except (OSError, StopIteration):
        return False
    return "AuthenticAMD" in vendor and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_linear(x, weight, bias=None):
    """x W^T + b by oneDNN, without gradients."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def few_rows_linear(x, weight, bias=None):
    """x W^T + b of up to `FEW` rows, without gradients."""
    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    doubled = torch.cat((rows, rows)) if count == 1 else rows
    out = torch.mm(weight, doubled.t())[:, :count].t().contiguous()
    if bias is not None:
        out += bias
    return out.view(*x.shape[:-1], -1)


def is_served(x, weight):
    """Whether another kernel than torch's choice multiplies x by a weight here: fp32 on such a processor, not traced."""
    one_type = x.dtype is torch.float32 and weight.dtype is torch.float32
    if is_tracing(x) or not one_type or x.device.type != "cpu" or weight.numel() < SMALLEST or not weight.is_contiguous():
        return False
    return prefers_other_kernels() and not torch.is_autocast_enabled("cpu")


def _input_product(rows, weight):
    return onednn_linear(rows, weight.t())


class LinearFunction(torch.autograd.Function):
    """x W^T + b in training, with oneDNN for all products but that of the weight's gradient, where it is not ahead.

    What a frozen weight reads is not kept: only the weight's own gradient needs it.
    """

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows, wants = grad.flatten(0, -2), ctx.needs_input_grad
        product = torch.matmul if torch.is_grad_enabled() else _input_product
        return (
            product(rows, weight).view(*grad.shape[:-1], weight.shape[1]) if wants[0] else None,
            rows.t() @ x.flatten(0, -2) if wants[1] else None,
            rows.sum(0) if ctx.needs_input_grad[2] else None,
        )


def input_gradient(grad, weight):
    """grad W [n, in] of grad [n, out], inside a backward pass that is not differentiated again."""
    return onednn_linear(grad, weight.t()) if is_served(grad, weight) else grad @ weight


def training_linear(x, weight, bias):
    """x W^T + b inside the forward of a training step, whose gradient the caller takes."""
    return onednn_linear(x, weight, bias) if is_served(x, weight) else linear(x, weight, bias)


def multiply(x, weight, bias=None):
    """x W^T + b of a weight that is no layer's own (one of many experts), by the kernel that is fastest for its shape."""
    if x.shape[0] > FEW or not is_served(x, weight) or records_gradients(x, weight, bias):
        return linear(x, weight, bias)
    return few_rows_linear(x, weight, bias)


def project(layer, x):
    """`layer(x)` for a linear layer, by the kernel that is fastest for its shape."""
    weight = layer._parameters.get("weight") if type(layer) is nn.Linear else None
    if weight is None or not is_served(x, weight) or not is_plain_linear(layer):
        return layer(x)
    bias = layer._parameters["bias"]
    if records_gradients(x, weight, bias):
        return LinearFunction.apply(x, weight, bias) if layer.training else layer(x)
    rows = x.numel() // x.shape[-1]
    if rows <= FEW:
        return few_rows_linear(x, weight, bias)
    if rows <= SOME and weight.numel() >= LARGE:
        return onednn_linear(x, weight, bias)
    return layer(x)
