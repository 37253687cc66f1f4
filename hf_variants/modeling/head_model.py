"""A stack with a head: what language models and task heads share, the routers' terms in a training loss."""

import torch
from transformers.utils import logging

from .experts import VariantsSparseMLP
from .losses import load_balancing_loss, mean_over_step, router_z_loss, share_of_step
from .router_balance import add_up
from .variants_base import VariantsPreTrainedModel
from .variants_model import VariantsModel

logger = logging.get_logger(__name__)


def router_coefs_of(config):
    """{term: coefficient} of the router losses that training a stack of `config` adds."""
    coefs = {"aux_loss": config.router_aux_loss_coef, "z_loss": config.router_z_loss_coef}
    return {name: coef for name, coef in coefs.items() if coef and config.has_experts}


def stack_terms(stack, config, coefs, router_logits, attention_mask):
    """Unweighted router losses {term: scalar} of one stack in one batch, for the terms of `coefs`.

    Args:
        stack: the modules among which the routers are. config: the `VariantsConfig` of the stack.
        router_logits: one [tokens, experts] tensor per sparse layer.
        attention_mask: [B, tokens seen], 0 at pads, which count for nothing; or None.

    Raises:
        ValueError: where no gradient leads from the logits to the routers.
    """
    if torch.is_grad_enabled() and _lost_gradient(stack, router_logits):
        raise ValueError(
            "activation checkpointing with use_reentrant=True runs the layers without gradients first, so that the router "
            f"losses {list(coefs)} would train nothing; set use_reentrant=False"
        )
    mask = attention_mask if attention_mask is not None and attention_mask.dim() == 2 else None
    if mask is not None:
        length = router_logits[0].shape[0] // mask.shape[0]
        mask = mask[:, -length:]
    terms = {}
    if "aux_loss" in coefs:
        choice = {"n_group": config.n_group, "topk_group": config.topk_group, "selection": config.router_selection}
        terms["aux_loss"] = load_balancing_loss(
            router_logits, config.num_experts_per_tok, config.router_scoring, mask, **choice
        )
    if "z_loss" in coefs:
        terms["z_loss"] = router_z_loss(router_logits, mask)
    return terms


def _lost_gradient(stack, router_logits):
    """Whether routers are trained, but no gradient leads from their logits to them."""
    trained = any(module.gate.weight.requires_grad for module in stack.modules() if isinstance(module, VariantsSparseMLP))
    return trained and not any(logits.requires_grad for logits in router_logits)


def add_weighted(loss, terms, coefs, share):
    """loss + the terms, each times its coefficient and this batch's share of the optimizer step."""
    for name, value in terms.items():
        loss = loss + coefs[name] * share * value.to(loss.device)
    return loss


def warn_of_kept_labels(coefs, num_items_in_batch):
    """Log, once, that a Trainer takes its loss from the logits, without the router losses of `coefs`."""
    if num_items_in_batch is None:
        return
    logger.warning_once(
        "the Trainer keeps the labels to itself (label_smoothing_factor or compute_loss_func), so the loss lacks "
        f"{list(coefs)}: in compute_loss_func, add them from the output with output_router_logits=True, or balance by "
        "router_balance='bias'"
    )


class VariantsHeadModel(VariantsPreTrainedModel):
    """A stack with a head: runs the stack, and adds the routers' terms to a training loss.

    `add_pooling_layer` says whether the head reads the pooler of the stack; without, it is not built.
    """

    def __init__(self, config, add_pooling_layer=False):
        super().__init__(config)
        self.model = self.build_stack(config, add_pooling_layer)
        self.router_coefs = router_coefs_of(self.text_config)
        self.router_sums = {}

    @property
    def text_config(self):
        """The `VariantsConfig` of the stack whose states the head reads."""
        return self.config

    def build_stack(self, config, add_pooling_layer):
        """What stands in `self.model`."""
        return VariantsModel(config, add_pooling_layer=add_pooling_layer)

    def run(self, labelled, num_items_in_batch, kwargs):
        """The stack's output, with router logits where a training loss needs them; kwargs are the forward's."""
        if self.training and self.router_coefs:
            if labelled:
                kwargs = {**kwargs, "output_router_logits": True}
            else:
                warn_of_kept_labels(self.router_coefs, num_items_in_batch)
        return self.model(**kwargs)

    def router_terms(self, router_logits, attention_mask):
        """Unweighted balance and z-loss of this batch, pads left out, for the coefficients in use."""
        if not (self.training and self.router_coefs and router_logits):
            return {}
        terms = stack_terms(self.model, self.text_config, self.router_coefs, router_logits, attention_mask)
        add_up(self.router_sums, terms)
        return terms

    def step_loss(self, total, count, terms, num_items_in_batch):
        """The summed loss of `count` labels as a mean over the optimizer step, with the weighted terms of this batch."""
        loss = mean_over_step(total, count, num_items_in_batch)
        return add_weighted(loss, terms, self.router_coefs, share_of_step(count, num_items_in_batch))
