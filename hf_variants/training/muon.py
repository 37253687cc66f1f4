"""Muon for the hidden matrices and AdamW for everything else, as one optimizer.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces the momentum of a matrix by the nearest
orthogonal one. Its update is scaled to the size of AdamW's (Liu et al. 2025, arXiv:2502.16982 §2.2), so both share
trainer.learning_rate.

Notable here: torch's own two optimizers on one list of groups, so schedules, clipping, checkpoints and Trainer see one.
"""

import inspect

import torch
from torch import nn

from ..modeling.vocabulary import nearest

# The scale that lets one learning rate serve both.
DEFAULT_OPTIONS = {"adjust_lr_fn": "match_rms_adamw"}


class MuonWithAdamW(torch.optim.Optimizer):
    """torch.optim.Muon on some groups and torch.optim.AdamW on the others, stepped together.

    Args:
        muon_groups, adamw_groups: parameter groups (dicts with params and weight_decay).
        lr: learning rate of both.
        muon_options, adamw_options: further keywords of the two classes.
    """

    def __init__(self, muon_groups, adamw_groups, lr, muon_options=None, adamw_options=None):
        self.parts = (
            torch.optim.Muon(muon_groups, lr=lr, **(muon_options or {})),
            torch.optim.AdamW(adamw_groups, lr=lr, **(adamw_options or {})),
        )
        super().__init__([group for part in self.parts for group in part.param_groups], {"lr": lr})
        self._share()

    def _share(self):
        """Both parts work on the groups and the state of the whole."""
        first = len(self.parts[0].param_groups)
        for part, groups in zip(self.parts, (self.param_groups[:first], self.param_groups[first:]), strict=True):
            part.param_groups, part.state = groups, self.state

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss


def hidden_matrices(model):
    """Names of the parameters that Muon takes: weights of linear layers, but not the head, and no router.

    An embedding or a head maps to or from tokens, where rows are no directions of one space; routers and fused experts
    ([E, out, in]) are no plain matrices.
    """
    head = model.get_output_embeddings()
    inputs = model.get_input_embeddings()
    outside = {id(module.weight) for module in (head, inputs) if module is not None}
    return [
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.weight.requires_grad and id(module.weight) not in outside
    ]


def muon_optimizer(model, decayed, arguments, options):
    """`MuonWithAdamW` for a model under TrainingArguments.

    Args:
        decayed: names of the parameters with weight decay.
        options: further keywords of torch.optim.Muon.

    Raises:
        ValueError: for a model without a hidden matrix.
    """
    matrices, decayed = set(hidden_matrices(model)), set(decayed)
    groups = {(muon, decay): [] for muon in (True, False) for decay in (True, False)}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[name in matrices, name in decayed].append(parameter)
    parts = {True: [], False: []}
    for (muon, decay), parameters in groups.items():
        if parameters:
            parts[muon].append({"params": parameters, "weight_decay": arguments.weight_decay if decay else 0.0})
    if not parts[True]:
        raise ValueError("optimizer='muon' finds no hidden matrix in the model; use optimizer='adamw'")
    adamw = {"betas": (arguments.adam_beta1, arguments.adam_beta2), "eps": arguments.adam_epsilon}
    return MuonWithAdamW(parts[True], parts[False], arguments.learning_rate, {**DEFAULT_OPTIONS, **options}, adamw)


def check_muon_options(options):
    """Raise a ValueError for an option that torch.optim.Muon does not take, or that the recipe says elsewhere."""
    known = [name for name in inspect.signature(torch.optim.Muon).parameters if name not in ("params", "lr", "weight_decay")]
    for key in options:
        if key not in known:
            raise ValueError(f"unknown key 'muon.{key}'{nearest(key, known)}; it takes the names of torch.optim.Muon: {known}")


def check_optimizer(spec):
    """Refuse what the keys `optimizer`, `muon` and `trainer` of a spec say against each other. Raises ValueError."""
    if spec.optimizer == "muon":
        if "optim" in spec.trainer:
            raise ValueError(
                f"trainer.optim={spec.trainer['optim']!r} has no effect with optimizer='muon'; leave one of them out"
            )
        check_muon_options(spec.muon)
    elif spec.muon:
        raise ValueError(f"muon={spec.muon!r} has no effect with optimizer={spec.optimizer!r}; set optimizer='muon'")
