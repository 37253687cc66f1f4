"""What torch says of a model that runs: operations counted, and tensors that autograd keeps."""

import torch
from torch.utils.flop_counter import FlopCounterMode


def counted(run):
    """(operations of `run()` by torch's counter, what it returned)."""
    with FlopCounterMode(display=False) as counter:
        result = run()
    return counter.get_total_flops(), result


class Held:
    """The distinct tensors kept between forward and backward pass, without the parameters and buffers of `model`."""

    def __init__(self, model):
        self.own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        self.found = {}

    def add(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.own:
            # the tensor is kept, or its memory could be given to another one under the same address
            self.found.setdefault(storage.data_ptr(), (storage.nbytes(), tensor))
        return tensor

    def saved(self):
        """A context in which what autograd saves is added."""
        return torch.autograd.graph.saved_tensors_hooks(self.add, lambda tensor: tensor)

    @property
    def bytes(self):
        return sum(size for size, _ in self.found.values())
