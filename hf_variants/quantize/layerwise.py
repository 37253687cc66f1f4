"""One layer in memory at a time: the model without its layers, a layer built from the source's tensors, and streams of
hidden states that pass from layer to layer.

Notable here: the arguments of every layer are caught by stand-ins in one cheap pass and replayed as they came, so nothing
about a layer's signature is assumed; the head runs the same way, on hidden states that a stand-in hands over; the source model
is never copied whole and never changed (unless its layers may be let go).
"""

import copy
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from transformers.initialization import no_init_weights

from ..modeling.blocks import TOPOLOGIES
from .replay import LayerCall
from .unfuse import unfused_state_dict


class StandIn(nn.Module):
    """Takes a layer's place: remembers what it is called with, and returns `hidden` or what it was given."""

    def __init__(self):
        super().__init__()
        self.calls, self.first, self.hidden = [], [], None

    def forward(self, *args, **kwargs):
        named = not args
        given, args = (kwargs["hidden_states"], args) if named else (args[0], args[1:])
        self.first.append(given.detach())
        self.calls.append(LayerCall(args, {k: v for k, v in kwargs.items() if k != "hidden_states"}, named))
        return given if self.hidden is None else self.hidden


@dataclass
class Stream:
    """Hidden states on their way through the layers: one tensor and, for each layer, one `LayerCall` per batch."""

    batches: list
    hidden: list
    calls: list

    @torch.no_grad()
    def through(self, layer, index):
        """Outputs of `layer`, which stands at `index`, one per batch."""
        return [call.run(layer, states) for states, call in zip(self.hidden, self.calls[index], strict=True)]

    def advance(self, layer, index):
        """Replace the hidden states by the outputs of `layer`."""
        self.hidden = self.through(layer, index)

    def copy(self):
        """Another stream from the same beginning."""
        return Stream(self.batches, list(self.hidden), self.calls)


def shell_of(model, quantization_config):
    """A copy of `model` without its layers, whose config carries `quantization_config`; eval mode, without gradients."""
    shell = copy.deepcopy(model, {id(model.base_model.layers): nn.ModuleList()})
    shell.config.quantization_config = quantization_config
    return shell.eval().requires_grad_(False)


def build_layer(shell, model, plan):
    """The layer of `model` that `plan` (a `LayerPlan`) describes, in float32, experts apart, with tensors of its own."""
    state = unfused_state_dict(model.base_model.layers[plan.index].state_dict())
    device = next(iter(state.values())).device
    with no_init_weights():
        layer = TOPOLOGIES[plan.topology](shell.config, plan)
    layer = layer.float().to(device)
    layer.load_state_dict(state, strict=True)
    return layer.eval().requires_grad_(False)


@torch.no_grad()
def open_stream(shell, batches):
    """The `Stream` of `batches` (a list of token ids [rows, tokens]) before the first layer of `shell`, in float32."""
    count = shell.config.num_hidden_layers
    with _stand_ins(shell, count) as layers, in_float32(shell):
        for batch in batches:
            shell.base_model(input_ids=batch, use_cache=False)
        return Stream(batches, layers[0].first, [layer.calls for layer in layers])


@torch.no_grad()
def outputs_of(shell, ids, hidden):
    """What the head of `shell` makes of the `hidden` states after the last layer: logits, or those of the bare model."""
    with _stand_ins(shell, shell.config.num_hidden_layers) as layers:
        layers[-1].hidden = hidden
        out = shell(input_ids=ids, use_cache=False) if shell.config.is_causal else shell(input_ids=ids)
    return (out.logits if hasattr(out, "logits") else out[0]).float()


@contextmanager
def _stand_ins(shell, count):
    base = shell.base_model
    kept, base.layers = base.layers, nn.ModuleList(StandIn() for _ in range(count))
    try:
        yield base.layers
    finally:
        base.layers = kept


@contextmanager
def in_float32(shell):
    """`shell` computes in float32 inside; its own dtypes come back after."""
    held = {name: parameter.data for name, parameter in shell.named_parameters()}
    for parameter in shell.parameters():
        parameter.data = parameter.data.float()
    try:
        yield
    finally:
        for name, parameter in shell.named_parameters():
            parameter.data = held[name]
