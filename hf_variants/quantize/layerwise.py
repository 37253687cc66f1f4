"""One layer in memory at a time: the model without its layers, a layer built from the source's tensors, and streams of
hidden states that pass from layer to layer, stack after stack.

Notable here: the arguments of every layer are caught by stand-ins in one cheap pass and replayed as they came, so nothing
about a layer's signature is assumed; the head runs the same way, on hidden states that a stand-in hands over, and so does all
that stands between an encoder and its decoder; the source model is never copied whole and never changed (unless its layers may
be let go).
"""

import copy
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers.initialization import no_init_weights

from ..modeling.blocks import TOPOLOGIES
from .batches import model_inputs
from .replay import LayerCall
from .stacks import put, stacks_of, without_layers
from .unfuse import unfused_state_dict


class StandIn(nn.Module):
    """Takes a module's place: remembers what it is called with, and returns `hidden` or what it was given."""

    def __init__(self):
        super().__init__()
        self.calls, self.first, self.hidden = [], [], None

    def forward(self, *args, **kwargs):
        named = not args
        given, args = (kwargs["hidden_states"], args) if named else (args[0], args[1:])
        self.first.append(given.detach())
        self.calls.append(LayerCall(args, {k: v for k, v in kwargs.items() if k != "hidden_states"}, named))
        return given if self.hidden is None else self.hidden

    def skip(self, count):
        """Say that it was not called in the last of `count` passes, where it was not."""
        if len(self.calls) < count:
            self.calls.append(None)


@dataclass
class Stream:
    """Hidden states of batches on their way through the layers.

    Attributes:
        batches: list of dicts of tensors, as the model takes them.
        hidden: one tensor per batch.
        calls: for each layer of the stack, one `LayerCall` per batch.
        before: {index of a layer: (module that runs before it, one `LayerCall` or None per batch)}.
        ends: {path of a finished stack: its last hidden states}.
    """

    batches: list
    hidden: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    before: dict = field(default_factory=dict)
    path: str | None = None
    ends: dict = field(default_factory=dict)

    @torch.no_grad()
    def enter(self, shell, stack):
        """Go to the first layer of `stack`, in float32; the stacks before it have been passed through."""
        if self.path is not None:
            self.ends[self.path] = self.hidden
        with _stand_ins(shell) as places, in_float32(shell):
            layers, inserted = places[stack.path]
            for number, batch in enumerate(self.batches):
                for path, hidden in self.ends.items():
                    places[path][0][-1].hidden = hidden[number]
                shell.base_model(**model_inputs(batch), **_no_cache(shell))
                for place in inserted.values():
                    place.skip(number + 1)
        self.path, self.hidden, self.calls = stack.path, layers[0].first, [layer.calls for layer in layers]
        modules = stack.insertions(shell)
        self.before = {index: (modules[index], place.calls) for index, place in inserted.items()}

    @torch.no_grad()
    def through(self, layer, index):
        """Outputs of `layer`, which stands at `index` of the stack, one per batch."""
        return [call.run(layer, states) for states, call in zip(self._entering(index), self.calls[index], strict=True)]

    def _entering(self, index):
        """Hidden states that the layer at `index` reads."""
        if index not in self.before:
            return self.hidden
        module, calls = self.before[index]
        with in_float32(module):
            return [
                states if call is None else call.run(module, states) for states, call in zip(self.hidden, calls, strict=True)
            ]

    def advance(self, layer, index):
        """Replace the hidden states by the outputs of `layer`."""
        self.hidden = self.through(layer, index)

    def copy(self):
        """Another stream at the same place."""
        return Stream(self.batches, list(self.hidden), self.calls, self.before, self.path, dict(self.ends))


def shell_of(model, quantization_config):
    """A copy of `model` without its layers, whose config carries `quantization_config`; eval mode, without gradients."""
    shell = copy.deepcopy(model, without_layers(model))
    shell.config.quantization_config = quantization_config
    return shell.eval().requires_grad_(False)


def build_layer(shell, model, stack, plan):
    """The layer of `model` that `plan` describes, in float32, experts apart, with tensors of its own; `stack` of `shell`."""
    state = unfused_state_dict(stack.layers(model)[plan.index].state_dict())
    device = next(iter(state.values())).device
    with no_init_weights(), stack.as_quantized(shell.config):
        layer = TOPOLOGIES[plan.topology](stack.config, plan)
    layer = layer.float().to(device)
    layer.load_state_dict(state, strict=True)
    return layer.eval().requires_grad_(False)


def open_stream(shell, batches):
    """The `Stream` of `batches` (dicts of tensors) before the first layer of `shell`, in float32."""
    stream = Stream(list(batches))
    stream.enter(shell, stacks_of(shell)[0])
    return stream


@torch.no_grad()
def outputs_of(shell, batch, hidden):
    """What the head of `shell` makes of the `hidden` states after the last layer: logits, or those of the bare model."""
    with _stand_ins(shell) as places:
        layers, _ = places[stacks_of(shell)[-1].path]
        layers[-1].hidden = hidden
        out = shell(**model_inputs(batch), **_no_cache(shell))
    return (out.logits if hasattr(out, "logits") else out[0]).float()


def _no_cache(shell):
    return {"use_cache": False} if getattr(shell.config, "is_causal", True) else {}


@contextmanager
def _stand_ins(shell):
    """Stand-ins at every layer: {path of a stack: (its stand-ins, {index: stand-in of what runs before that layer})}."""
    stacks, kept = stacks_of(shell), []
    places = {}
    try:
        for stack in stacks:
            layers = nn.ModuleList(StandIn() for _ in range(stack.config.num_hidden_layers))
            inserted = {index: StandIn() for index in stack.insertions(shell)}
            kept.append((stack.path, put(shell, stack.path, layers)))
            if inserted:
                named = nn.ModuleDict({str(index): place for index, place in inserted.items()})
                kept.append((stack.inserted, put(shell, stack.inserted, named)))
            places[stack.path] = (layers, inserted)
        yield places
    finally:
        for path, module in kept:
            put(shell, path, module)


@contextmanager
def in_float32(module):
    """`module` computes in float32 inside; its own dtypes come back after."""
    held = {name: parameter.data for name, parameter in module.named_parameters()}
    for parameter in module.parameters():
        parameter.data = parameter.data.float()
    try:
        yield
    finally:
        for name, parameter in module.named_parameters():
            parameter.data = held[name]
