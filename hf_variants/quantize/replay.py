"""What the model passes to a layer, caught once and replayed.

Notable here: positional and keyword arguments are replayed as they came (masks, rotations, whatever a release adds),
so nothing about a layer's signature is assumed but that hidden states come first.
"""

from dataclasses import dataclass


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
