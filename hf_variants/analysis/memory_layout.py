"""Which bytes of weights, gradients and optimizer states lie on one device, and what devices send each other.

Notable here: the units are those that FSDP gathers: one per layer, and what stands outside the layers. After Rajbhandari et
al. 2020 (arXiv:1910.02054 §3, §5).
"""

from .memory_batch import PRECISIONS
from .parameter_shares import layer_shares, outer_shares

# bitsandbytes: two bytes and two fp32 scales per block of 256; tables and small tensors stay in fp32
_EIGHT_BIT = 2 * (1 + 4 / 256)


def outside(config, stack):
    """What an encoder whose states a decoder reads lacks: a head, and under `share_embeddings` a table of its own."""
    if stack is config.stacks[-1]:
        return {}
    return {"headless": True, "tableless": config.share_embeddings}


class Layout:
    """Which bytes of weights, gradients and optimizer states lie on one device.

    stacks, outer: the `Share`s of each layer by stack, and of what stands outside; None: those of the config's own stacks.
    """

    def __init__(self, config, settings, stacks=None, outer=None):
        self.settings = settings
        self.stream, self.product, self.casts = PRECISIONS[settings["dtype"]]
        self.data = settings["devices"] // settings["tensor_parallel"]
        self.sharding = settings["sharding"]
        tensor, expert = settings["tensor_parallel"], settings["expert_parallel"]
        if stacks is None:
            stacks = [[layer_shares(stack, plan, tensor, expert) for plan in stack.layer_plan()] for stack in config.stacks]
            outer = sum((outer_shares(stack, tensor, **outside(config, stack)) for stack in config.stacks), ())
        self.stacks, self.outer = stacks, outer
        self.layers = [unit for units in self.stacks for unit in units]
        # ranks that hold the same share of the experts, and divide it under FSDP
        self.same_experts = settings["devices"] // expert if expert > 1 else self.data
        self.weights = self._bytes(lambda share: share.numbers * self.stream, self.sharding == "fsdp")
        if settings["purpose"] == "train":
            divided = self.sharding in ("zero1", "zero2", "fsdp")
            self.optimizer = self._bytes(self._moments, divided)
            self.gradients = self._bytes(self._gradient, self.sharding in ("zero2", "fsdp"))

    def _bytes(self, of, divided):
        return sum(self.of_unit(unit, of, divided) for unit in (*self.layers, self.outer))

    def of_unit(self, unit, of, divided):
        """Bytes of the parts of one layer, or of what is outside, each times `of(share)`, divided over ranks or not."""
        return sum(of(share) / (self._ranks(share) if divided else 1) for share in unit)

    def _ranks(self, share):
        return self.same_experts if share.routed else self.data

    def _gradient(self, share):
        return 0 if share.frozen else share.numbers * self.stream

    def _moments(self, share):
        if share.frozen:
            return 0
        kind = self.settings["optimizer"]
        if kind == "sgd":
            return 0
        if kind == "adamw_8bit":
            return share.numbers * 8 if share.table or share.small else share.numbers * _EIGHT_BIT
        if kind == "muon" and share.hidden_matrix:
            return share.numbers * self.stream
        return share.numbers * 2 * self.stream

    def states(self):
        return {"weights": self.weights, "gradients": self.gradients, "optimizer": self.optimizer}

    def gradients_of(self, unit):
        return self.of_unit(unit, self._gradient, self.sharding in ("zero2", "fsdp"))

    def whole_gradients_of(self, unit):
        """As they are made, before ranks reduce and divide them."""
        return self.of_unit(unit, self._gradient, False)

    def cast_of(self, unit):
        """bf16 copies that autocast makes of the matrices, and that the backward pass reads; FSDP gathers bf16 instead."""
        if not self.casts or self.sharding == "fsdp":
            return 0
        return self.of_unit(unit, lambda share: share.cast * share.products * self.product, False)

    def reduces(self):
        """Whether gradients are divided as soon as a layer has them."""
        return self.data > 1 and self.sharding in ("zero2", "fsdp")

    def communication(self):
        if self.data == 1 or self.sharding == "none":
            return 0
        if self.settings["purpose"] == "generate":
            return self._gathered() if self.sharding == "fsdp" else 0
        if self.sharding == "ddp":
            return self.gradients
        largest = max(self.whole_gradients_of(layer) for layer in self.layers)
        if self.sharding != "fsdp":
            return largest
        # a block that was gathered in the dtype of products has its gradient in it until the ranks divide it
        return largest * self.product / self.stream + self._gathered()

    def _gathered(self):
        """The block at work and the next one, and what stands outside the layers, whole in the dtype of products."""
        blocks = sorted((self._gathered_numbers(layer) for layer in self.layers), reverse=True)
        return (sum(blocks[:2]) + self._gathered_numbers(self.outer)) * self.product

    def _gathered_numbers(self, unit):
        # experts that no other rank shares are never gathered
        return sum(share.numbers for share in unit if self._ranks(share) > 1)
