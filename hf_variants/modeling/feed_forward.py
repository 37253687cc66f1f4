"""Feed-forward networks: gated (SwiGLU and its kin) and plain.

Notable here: what is done with gate and up is chosen once; `FEED_FORWARDS` is the contents. Over a prompt, without gradients,
act(gate) is written over gate while that is in the cache, and the product over both: the same numbers bit by bit, of half the
memory.
"""

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.utils.import_utils import is_tracing

from .layer_plan import mlp_biases
from .memory_lean import GatedMLPFunction
from .null_modules import build_dropout
from .plain_linear import in_autocast_dtype, is_hooked, is_plain_linear, records_gradients
from .products import project, training_linear

# Numbers of an input from which it is worth a look whether gate may be overwritten; a decoded token has fewer.
LARGE = 1 << 18
SILU = (nn.SiLU, type(ACT2FN["silu"]))


class ClampedSwiGLU(nn.Module):
    """(clamp(up, -L, L) + 1) * g * sigmoid(alpha * g) with g = min(gate, L): the gate of gpt-oss."""

    def __init__(self, limit, alpha):
        super().__init__()
        self.limit, self.alpha = limit, alpha

    def forward(self, gate, up):
        gate, up = gate.clamp(max=self.limit), up.clamp(min=-self.limit, max=self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))


class GatedActivation(nn.Module):
    """act(gate) * up."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, gate, up):
        return self.act(gate) * up

    def activate_over(self, gate):
        """act(gate), in gate's own memory where torch has the activation in place."""
        return nn.functional.silu(gate, inplace=True) if type(self.act) in SILU else self.act(gate)


def activation(name):
    """transformers' activation; one with weights of its own (xIELU of Apertus) in the dtype the model is built in."""
    return ACT2FN[name].to(torch.get_default_dtype())


def gate_function(config):
    """(gate, up) -> the hidden layer of a gated network (Shazeer 2020, arXiv:2002.05202 §2)."""
    if config.swiglu_limit is not None:
        return ClampedSwiGLU(config.swiglu_limit, 1.702 if config.swiglu_alpha is None else config.swiglu_alpha)
    return GatedActivation(activation(config.hidden_act))


class VariantsGatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)).

    Args:
        config: a `VariantsConfig`.
        width: size of the hidden layer.
        bias: whether the projections have biases; None gives `config.mlp_bias`, and `config.mlp_out_bias` for the last.
    """

    def __init__(self, config, width, bias=None):
        super().__init__()
        bias, out_bias = mlp_biases(config, bias)
        self.gate_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=out_bias)
        self.combine = gate_function(config)
        self.dropout = build_dropout(config.activation_dropout)
        # xIELU has weights of its own; what was dropped would be drawn anew
        self.recomputes = not any(True for _ in self.combine.parameters()) and config.activation_dropout == 0

    def forward(self, hidden_states, token_mask=None):
        layers = (self.gate_proj, self.up_proj, self.down_proj)
        plain = self.recomputes and all(map(is_plain_linear, layers))
        if plain and records_gradients(hidden_states, self.down_proj.weight):
            weights = (part for layer in layers for part in (layer.weight, layer.bias))
            product = training_linear if self.training else nn.functional.linear
            return GatedMLPFunction.apply(self.combine, product, *in_autocast_dtype(hidden_states, *weights))
        if plain and self._may_overwrite(hidden_states):
            inner = self.combine.activate_over(project(self.gate_proj, hidden_states))
            return project(self.down_proj, inner.mul_(project(self.up_proj, hidden_states)))
        gate, up = project(self.gate_proj, hidden_states), project(self.up_proj, hidden_states)
        return project(self.down_proj, self.dropout(self.combine(gate, up)))

    def _may_overwrite(self, hidden_states):
        """Whether nobody reads gate or act(gate) again: no gradient, no hook; a traced graph must not even compare sizes."""
        known = type(self.combine) is GatedActivation
        if not known or torch.is_grad_enabled() or is_tracing(hidden_states) or hidden_states.numel() < LARGE:
            return False
        return not any(map(is_hooked, self.combine.modules()))


class VariantsPlainMLP(nn.Module):
    """down(act(up(x))); arguments as `VariantsGatedMLP`."""

    def __init__(self, config, width, bias=None):
        super().__init__()
        bias, out_bias = mlp_biases(config, bias)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=out_bias)
        self.act_fn = activation(config.hidden_act)
        self.dropout = build_dropout(config.activation_dropout)

    def forward(self, hidden_states, token_mask=None):
        return project(self.down_proj, self.dropout(self.act_fn(project(self.up_proj, hidden_states))))


FEED_FORWARDS = {"gated": VariantsGatedMLP, "plain": VariantsPlainMLP}
