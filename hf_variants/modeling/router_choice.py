"""Which experts a token may choose from where they stand in groups: those of the best groups.

Notable here: the router and its balance loss ask the same functions, so that the loss counts the experts that were chosen.
"""

import torch


def best_expert(grouped):
    """The score of a group [..., experts of it] is that of its best expert (DeepSeek-V2, arXiv:2405.04434 §2.2.2)."""
    return grouped.amax(dim=-1)


def two_best_experts(grouped):
    """The sum of its two best (DeepSeek-V3, arXiv:2412.19437 §2.1.2)."""
    return grouped.topk(2, dim=-1).values.sum(dim=-1)


# router_scoring -> score of a group
GROUP_SCORES = {"softmax": best_expert, "sigmoid": two_best_experts}


def keep_best_groups(choice, n_group, topk_group, score_group):
    """`choice` [tokens, experts] with -inf outside of the best `topk_group` of `n_group` groups."""
    if n_group == 1:
        return choice
    grouped = choice.view(choice.shape[0], n_group, -1)
    best = score_group(grouped).topk(topk_group, dim=-1, sorted=False).indices
    kept = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=choice.device).scatter(1, best, True)
    return grouped.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(1)
