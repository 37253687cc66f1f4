"""The sides of a section: native and ours, on equal weights that are drawn on the device itself.

Notable here: a side can leave the card (`park`) and come back (`fetch`), because a peak of memory means something only where
nothing of another side lies beside it.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from hf_variants.convert import from_native

NATIVE = "native"


@dataclass
class Side:
    """One model and what is called on it.

    Attributes:
        name: "native", or which of ours.
        model, call, ids: what runs on what.
        state: what `call.begin` gave; made at the first run.
    """

    name: str
    model: torch.nn.Module
    call: Any
    ids: torch.Tensor
    state: Any = field(default=None, repr=False)
    begun: bool = False

    def __post_init__(self):
        self.model.train(self.call.trains)

    def run(self):
        if not self.begun:
            self.state, self.begun = self.call.begin(self.model, self.ids), True
        return self.call.run(self.model, self.ids, self.state)

    def probe(self):
        return self.call.probe(self.model, self.ids)

    def clear(self):
        """Drop the gradients of the last call."""
        self.model.zero_grad(set_to_none=True)

    def park(self):
        """Take the model from the device, and drop what it had got ready."""
        self.clear()
        self.state, self.begun = None, False
        self.model.to("cpu")

    def fetch(self, device):
        self.model.to(device)


def draw_native(config, device, attention):
    """A native model of random fp32 weights that bf16 holds exactly, drawn on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        native = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    with torch.no_grad():
        for parameter in native.parameters():
            parameter.copy_(parameter.bfloat16())
    return native.eval()


def as_dtype(native, dtype, device, attention):
    """The same native model built in `dtype`: a cast of the whole would take the tables of angles along."""
    with torch.device(device):
        made = AutoModelForCausalLM.from_config(native.config, attn_implementation=attention, dtype=dtype)
    made.load_state_dict(native.state_dict())
    return made.eval()


def convert(native, device, attention):
    """Ours, with equal weights, made on the device."""
    with torch.device(device):
        return from_native(native, attn_implementation=attention)
