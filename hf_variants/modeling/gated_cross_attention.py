"""Gated cross-attention to images before a layer of a language model: y = x + tanh(alpha) * CrossAttention(norm(x), images).

Flamingo (Alayrac et al. 2022, arXiv:2204.14198 §2.2). Notable here: alpha starts at zero, so the language model starts as it
was, bit for bit; a token that sees no image keeps its state, whatever alpha has become.
"""

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .cross_attention import CROSS_ATTENTIONS
from .feed_forward import FEED_FORWARDS
from .norms import build_norm


class ImageCache:
    """Keys and values of images for one cross-attention, as `cross_attention.recall` reads those of another stack.

    Args:
        layer: the `ImageLayer` that holds them.
        layer_idx: index of the text layer.
    """

    is_compileable = False

    def __init__(self, layer, layer_idx):
        self.layer = layer
        self.is_updated, self.layers = {layer_idx: True}, {layer_idx: self}
        self.cross_attention_cache = self

    @property
    def keys(self):
        return self.layer.keys

    @property
    def values(self):
        return self.layer.values

    def remember(self, attention, states):
        """Put the keys and values of `states` [B, S, hidden] behind those held; None, which says that they are here."""
        if states is not None:
            self.layer.update(*attention.keys_and_values(states))


class Gate(nn.Module):
    """tanh(alpha) times a branch, with a learned alpha [1] that starts at zero."""

    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(1))

    def fill(self):
        init.zeros_(self.alpha)

    def forward(self, branch):
        return torch.tanh(self.alpha).to(branch.dtype) * branch


class GatedCrossAttention(GradientCheckpointingLayer):
    """What stands before one text layer.

    Args:
        config: the `VariantsConfig` of the text.
        plan: the `LayerPlan` of that layer.
        has_mlp: a gated feed-forward behind the attention.
    """

    def __init__(self, config, plan, has_mlp):
        super().__init__()
        self.cross_norm = build_norm(config, config.hidden_size)
        self.cross_attn = CROSS_ATTENTIONS[plan.attention](config, plan, config.hidden_size)
        self.attn_gate = Gate()
        if has_mlp:
            self.mlp_norm = build_norm(config, config.hidden_size)
            self.mlp = FEED_FORWARDS[config.mlp_type](config, config.intermediate_size)
            self.mlp_gate = Gate()

    def forward(self, hidden_states, states, sees, mask, cache):
        """Args: hidden_states [B, T, hidden]; states [B, S, hidden] of images, or None where `cache` holds them; sees
        [B, T, 1], false at tokens that see none; mask, boolean [B, 1, T, S]; cache, an `ImageCache` or None.
        """
        if cache is not None:
            states = cache.remember(self.cross_attn, states)
        attended, _ = self.cross_attn(self.cross_norm(hidden_states), states, attention_mask=mask, past_key_values=cache)
        hidden_states = hidden_states + self.attn_gate(attended).masked_fill(~sees, 0.0)
        if not hasattr(self, "mlp"):
            return hidden_states
        return hidden_states + self.mlp_gate(self.mlp(self.mlp_norm(hidden_states))).masked_fill(~sees, 0.0)
