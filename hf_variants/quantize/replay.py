"""Running one layer at a time: what the model passes to every layer is caught once and replayed.

Notable here: positional and keyword arguments are replayed as they came (masks, rotations, whatever a release adds),
so nothing about a layer's signature is assumed but that hidden states come first.
"""

from dataclasses import dataclass

import torch


@dataclass
class LayerCall:
    """All arguments of one call of one layer, but for the hidden states."""

    args: tuple
    kwargs: dict
    named: bool

    def run(self, layer, hidden):
        """The hidden states after `layer`."""
        out = (
            layer(*self.args, hidden_states=hidden, **self.kwargs) if self.named else layer(hidden, *self.args, **self.kwargs)
        )
        return out[0] if isinstance(out, tuple) else out


@torch.no_grad()
def capture_calls(model, layers, batches):
    """Run the model once over `batches` (a list of token ids [rows, tokens]).

    Returns:
        (hidden states before the first layer, one per batch; for each layer its `LayerCall` per batch).
    """
    first, calls = [], [[] for _ in layers]

    def remember(index):
        def hook(module, args, kwargs):
            named = not args
            hidden, args = (kwargs["hidden_states"], args) if named else (args[0], args[1:])
            if index == 0:
                first.append(hidden.detach())
            calls[index].append(LayerCall(args, {k: v for k, v in kwargs.items() if k != "hidden_states"}, named))

        return hook

    handles = [m.register_forward_pre_hook(remember(i), with_kwargs=True) for i, m in enumerate(layers)]
    try:
        for batch in batches:
            model.base_model(input_ids=batch, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return first, calls


@torch.no_grad()
def run_layer(layer, hidden, calls):
    """Outputs of `layer`, one per batch."""
    return [call.run(layer, states) for states, call in zip(hidden, calls, strict=True)]
