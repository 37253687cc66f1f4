"""What every Trainer logs about experts: the routers' unweighted losses and how evenly the experts are used.

Notable here: importing the package adds the callback to the Trainer's default ones, so it needs no code; it does nothing for
other models. The model and its routers keep sums on their device, which are read when a line is logged and not before.
"""

import re

import torch
from transformers import TrainerCallback

from .modeling.router_balance import settle


class ExpertMetricsCallback(TrainerCallback):
    """Closes the steps that routers cannot see by themselves (frozen under LoRA; sharded by DeepSpeed or FSDP), and logs,
    at every training line of a model with experts, over the steps and processes since the last one:

    - `aux_loss`, `z_loss`: mean router losses per micro-batch, without their coefficients, where the model has them;
    - `expert_load_layer_N_min`, `_max`: smallest and largest number of tokens of any expert of layer N, relative to even use
      (1 is even), and `expert_load_min`, `_max` over all layers.
    """

    def __init__(self):
        self.loads, self.routers, self.heads = {}, {}, []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.loads, self.routers = {}, routers_by_layer(model)
        self.heads = [module for module in model.modules() if hasattr(module, "router_sums")] if self.routers else []
        for head in self.heads:
            head.router_sums.clear()

    def on_step_end(self, args, state, control, **kwargs):
        routers = self.routers.values()
        settle([router for router in routers if not router.weight.requires_grad], moves_bias=False)
        if optimizer_hides_weights():
            settle([router for router in routers if router.weight.requires_grad])
        for layer, router in self.routers.items():
            if router.last_load is not None:
                self.loads[layer] = self.loads.get(layer, 0) + router.last_load

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is None or "loss" not in logs or not self.routers:
            return
        values = {**mean_terms(self.heads), **load_metrics(self.loads)}
        logs.update(values)
        if state.log_history:
            state.log_history[-1].update(values)
        self.loads = {}

    def on_train_end(self, args, state, control, **kwargs):
        self.loads, self.routers, self.heads = {}, {}, []


def optimizer_hides_weights():
    """Whether the optimizer holds flat shards in place of the weights (DeepSpeed, FSDP), so that no router knows its own."""
    from accelerate.state import AcceleratorState, is_initialized

    return is_initialized() and AcceleratorState().distributed_type in ("DEEPSPEED", "FSDP")


def routers_by_layer(model):
    """{layer index: router} of the modules that count the load of their experts; of two stacks "encoder_0" and so on."""
    routers = {}
    for name, module in model.named_modules():
        layer = re.search(r"(?:\b(encoder|decoder)\.)?layers\.(\d+)\.", name)
        # by name: a model that was loaded as remote code holds another copy of the class
        if layer and type(module).__name__ == "VariantsTopKRouter":
            stack, index = layer.groups()
            routers[int(index) if stack is None else f"{stack}_{index}"] = module
    return routers


def mean_terms(heads):
    """{name: mean} of the router terms that the models summed, over all processes; the sums start again."""
    means = {}
    for head in heads:
        for name, (total, number) in sorted(head.router_sums.items()):
            pair = torch.stack([total.double(), total.new_tensor(number, dtype=torch.float64)])
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.all_reduce(pair)
            means[name] = (pair[0] / pair[1]).item()
        head.router_sums.clear()
    return means


def load_metrics(loads):
    """Smallest and largest relative load per layer and overall, from {layer: token counts [E]}."""
    metrics = {}
    for layer, counts in loads.items():
        relative = counts.double() / counts.double().sum().clamp(min=1) * len(counts)
        metrics[f"expert_load_layer_{layer}_min"] = round(relative.min().item(), 4)
        metrics[f"expert_load_layer_{layer}_max"] = round(relative.max().item(), 4)
    if metrics:
        lowest = min(value for name, value in metrics.items() if name.endswith("_min"))
        highest = max(value for name, value in metrics.items() if name.endswith("_max"))
        metrics.update(expert_load_min=lowest, expert_load_max=highest)
    return metrics


def add_default_callback(trainer_module):
    """Have every Trainer made from now on log the numbers of experts. Safe to repeat."""
    if ExpertMetricsCallback not in trainer_module.DEFAULT_CALLBACKS:
        trainer_module.DEFAULT_CALLBACKS.append(ExpertMetricsCallback)
