"""What mixture-of-experts training must show beside the loss: balance loss, z loss, and how evenly experts are used.

Notable here: losses are read by a hook from the model's output and loads from what the routers count anyway (over all
micro-batches and ranks, without pads), so a plain Trainer logs them too and no forward is repeated.
"""

import re

from transformers import TrainerCallback

from .callbacks import add_to_log


class ExpertMetricsCallback(TrainerCallback):
    """Logs, at every training line of a model with experts, over the steps since the last one:

    - `aux_loss`, `z_loss`: mean unweighted router losses of this process, where the model has them;
    - `expert_load_layer_N_min` / `_max`: smallest and largest number of tokens of any expert of layer N, relative to
      even use (1 is even), and `expert_load_min` / `_max` over all layers.
    """

    def __init__(self):
        self.sums, self.forwards, self.loads, self.routers, self.hook = {}, 0, {}, {}, None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.routers = routers_by_layer(model)
        if self.routers:
            self.hook = model.register_forward_hook(self._read_losses)

    def on_step_end(self, args, state, control, **kwargs):
        for layer, router in self.routers.items():
            if router.last_load is not None:
                self.loads[layer] = self.loads.get(layer, 0) + router.last_load

    def on_train_end(self, args, state, control, **kwargs):
        if self.hook is not None:
            self.hook.remove()
        self.hook, self.routers = None, {}

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is None or "loss" not in logs or not self.forwards:
            return
        values = {name: float(total) / self.forwards for name, total in self.sums.items()}
        add_to_log(state, logs, {**values, **load_metrics(self.loads)})
        self.sums, self.forwards, self.loads = {}, 0, {}

    def _read_losses(self, module, inputs, output):
        if not module.training:
            return
        self.forwards += 1
        for name in ("aux_loss", "z_loss"):
            value = getattr(output, name, None)
            if value is not None:
                self.sums[name] = self.sums.get(name, 0.0) + value.detach().float()


def routers_by_layer(model):
    """{layer index: router} of the modules that count the load of their experts."""
    routers = {}
    for name, module in model.named_modules():
        layer = re.search(r"layers\.(\d+)\.", name)
        # by name: a model that was loaded as remote code holds another copy of the class
        if layer and type(module).__name__ == "VariantsTopKRouter":
            routers[int(layer.group(1))] = module
    return routers


def load_metrics(loads):
    """Smallest and largest relative load per layer and overall, from {layer: token counts [E]}."""
    metrics = {}
    for layer, counts in sorted(loads.items()):
        relative = counts.double() / counts.double().sum().clamp(min=1) * len(counts)
        metrics[f"expert_load_layer_{layer}_min"] = round(relative.min().item(), 4)
        metrics[f"expert_load_layer_{layer}_max"] = round(relative.max().item(), 4)
    if metrics:
        lowest = min(value for name, value in metrics.items() if name.endswith("_min"))
        highest = max(value for name, value in metrics.items() if name.endswith("_max"))
        metrics.update(expert_load_min=lowest, expert_load_max=highest)
    return metrics
