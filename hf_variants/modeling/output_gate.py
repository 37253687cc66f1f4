"""Gates on the output of attention: sigmoid(W x) for each channel or each head, before the output projection.

Qiu et al. 2025, arXiv:2505.06708. Notable here: the gate reads what attention reads, so it is one more projection beside q, k
and v; grouped and latent attention share it. `OUTPUT_GATES` is the contents.
"""

import torch
from torch import nn


def no_gate(self, out, hidden_states):
    return out.flatten(2)


def channel_gate(self, out, hidden_states):
    return out.flatten(2) * torch.sigmoid(self.gate_proj(hidden_states))


def head_gate(self, out, hidden_states):
    return (out * torch.sigmoid(self.gate_proj(hidden_states)).unsqueeze(-1)).flatten(2)


# attn_output_gate -> (number of outputs of `gate_proj` for heads of a width,
#                      attention, its heads [B, Q, heads, D] and its input -> [B, Q, heads * D])
OUTPUT_GATES = {
    "none": (lambda heads, width: 0, no_gate),
    "channel": (lambda heads, width: heads * width, channel_gate),
    "head": (lambda heads, width: heads, head_gate),
}


def build_output_gate(config):
    """The projection of the gate, or None, and how it is applied."""
    size, apply = OUTPUT_GATES[config.attn_output_gate]
    outputs = size(config.num_attention_heads, config.value_head_dim)
    return (nn.Linear(config.hidden_size, outputs, bias=False) if outputs else None), apply
