"""Expert load: counted in the router, summed over the ranks, turned into the bias rule once per optimizer step.

Auxiliary-loss-free balancing (Wang et al. 2024, arXiv:2408.15664 Algorithm 1): after each step, b_e += rate * sign(mean load -
load_e), with the load counted over the whole step: all micro-batches, all ranks, no pads.

Notable here: the rule hangs on torch's own hook after every optimizer step, so a plain Trainer, accelerate or a hand-written
loop all train it without a line of code. A forward that is recomputed under activation checkpointing is not counted again.
"""

import itertools
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers.utils import logging

logger = logging.get_logger(__name__)

_IDLE = (
    "num_experts_per_tok=1 with norm_topk_prob=True divides the weight of the one chosen expert by itself: it is always 1, so "
    "the labels give the router no gradient, and at most router_aux_loss_coef or router_z_loss_coef trains it. Choose "
    "norm_topk_prob=False, which weighs the expert by its score, or num_experts_per_tok of 2 or more"
)
_ROUTERS = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()
_HOOK = []


def watch_router(router):
    """Have `router` balanced after every step of an optimizer that owns its weight."""
    router.watch_number = next(_NUMBERS)
    _ROUTERS[router.watch_number] = router
    if not _HOOK:
        _HOOK.append(register_optimizer_step_post_hook(_after_step))


def _is_recomputation():
    """Whether this forward runs inside a backward pass, as under activation checkpointing."""
    return torch._C._current_graph_task_id() != -1


@torch.compiler.disable
def record_load(router, indices, token_mask):
    """Add the tokens routed to each expert. indices [tokens, top_k]; token_mask [tokens] or None."""
    if _is_recomputation():
        return
    if router.top_k == 1 and router.norm_topk_prob and router.weight.requires_grad:
        logger.warning_once(_IDLE)
    if _ROUTERS.get(router.watch_number) is not router:  # a deep copy carries its original's number
        watch_router(router)
    with torch.no_grad():
        ones = torch.ones_like(indices, dtype=torch.float32)
        if token_mask is not None:
            ones = ones * token_mask.to(torch.float32).unsqueeze(-1)
        load = torch.zeros(router.num_experts, dtype=torch.float32, device=indices.device)
        load.scatter_add_(0, indices.flatten(), ones.flatten())
        same_place = router.load is not None and router.load.device == load.device
        router.load = router.load + load if same_place else load


@torch.compiler.disable
def add_up(sums, terms):
    """Add scalar tensors and their number to `sums` ({name: (total, number)}), detached and without waiting for a device."""
    for name, value in terms.items():
        total, number = sums.get(name, (0.0, 0))
        sums[name] = (total + value.detach(), number + 1)


def _after_step(optimizer, args, kwargs):
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    settle([router for _, router in sorted(_ROUTERS.items()) if id(router.weight) in owned])


@torch.no_grad()
def settle(routers, moves_bias=True):
    """Close the step of `routers`: their load, summed over the ranks, becomes `last_load` and moves their bias."""
    routers = [router for router in routers if router.load is not None]
    if not routers:
        return
    loads = torch.stack([router.load.to(routers[0].load.device) for router in routers])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(loads)
    for router, load in zip(routers, loads, strict=True):
        router.last_load, router.load = load, None
        bias = router.e_score_correction_bias
        if moves_bias and bias is not None and load.sum() > 0:
            bias.add_(router.update_rate * torch.sign(load.mean() - load).to(bias.device))
