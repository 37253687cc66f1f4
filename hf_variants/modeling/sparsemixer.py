"""SparseMixer: experts chosen one after the other, each weighted by a softmax over its near rivals.

Liu et al. 2023 (arXiv:2310.00811), for several experts Liu et al. 2024 (GRIN, arXiv:2409.12136 §2.2), as in Phi-3.5-MoE.

Notable here: outside training the choice is the best logit of each round. In training it is sampled, and Heun's third-order
rule makes the gradient of the router that of the sampling: a weight that was not the best choice is cut to a third with the
probability 3/4, while its gradient stays whole.
"""

import torch


def mix_sparsely(logits, top_k, jitter_eps, training):
    """Weights and indices, each [tokens, top_k], of logits [tokens, experts].

    jitter_eps: a logit s takes part in a round of best b where (b - s) / max(|s|, b) is at most twice this.
    """
    rounds, left = [], logits
    for _ in range(top_k):
        weight, index = _one_round(logits, left, jitter_eps, training)
        rounds.append((weight, index))
        left = left.scatter(-1, index, -torch.inf)
    weights, indices = (torch.cat(parts, dim=-1) for parts in zip(*rounds, strict=True))
    return weights, indices


def _one_round(logits, left, jitter_eps, training):
    """Weight and index [tokens, 1] of the next expert among those that `left` still holds."""
    with torch.no_grad():
        best, index = left.max(dim=-1, keepdim=True)
        far = (best - left) / logits.abs().clamp(min=best) > 2 * jitter_eps
    near = left.masked_fill(far, -torch.inf)
    shares = near.softmax(dim=-1)
    if not training:
        return shares.gather(-1, index), index
    with torch.no_grad():
        # the largest of logits plus Gumbel noise is a sample of their softmax
        index = (near - torch.empty_like(near).exponential_().log()).argmax(dim=-1, keepdim=True)
        likeliest, best = shares.max(dim=-1, keepdim=True)
        whole = (index == best) | (torch.rand_like(likeliest) > 0.75)
        factor = torch.where(whole, 1.0, 0.3333)
    weight = shares.gather(-1, index)
    return weight + (weight * (factor - 1)).detach(), index
