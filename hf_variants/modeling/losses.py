"""Losses: cross-entropy in chunks of tokens, and the balance and z-losses of the routers.

Notable here: the cross-entropy never holds the full fp32 logits, in either pass; logits that nobody has asked for are
computed when somebody does; what is averaged is averaged over the tokens of the whole optimizer step, so nothing depends on
how a batch is cut.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.utils import ModelOutput

from .router_choice import GROUP_SCORES, keep_best_groups

IGNORE = -100
CHUNK_ELEMENTS = 1 << 23


class DeferredLogits:
    """Stands for logits that were not asked for; calling it computes them."""

    def __init__(self, hidden_states, head):
        self.hidden_states, self.head = hidden_states, head

    def __call__(self):
        return self.head(self.hidden_states)


@dataclass
class VariantsCausalLMOutput(ModelOutput):
    """Output of the language-model heads.

    `aux_loss` and `z_loss` are the unweighted router terms of this batch, None where none were computed.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    past_key_values: object | None = None
    hidden_states: tuple | None = None
    attentions: tuple | None = None
    cross_attentions: tuple | None = None
    router_logits: tuple | None = None
    aux_loss: torch.Tensor | None = None
    z_loss: torch.Tensor | None = None


class DeferredOutput:
    """Mixed into an output where logits were not asked for: `.logits` and `["logits"]` compute them on first access."""

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name == "logits" and isinstance(value, DeferredLogits):
            value = value()
            self.logits = value
        return value

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.logits if key == "logits" else super().__getitem__(key)
        return self.to_tuple()[key]

    def to_tuple(self):
        return tuple(self[key] for key in self.keys())


@dataclass
class DeferredLogitsOutput(DeferredOutput, VariantsCausalLMOutput):
    """The output of language models where logits were not asked for.

    A class of its own, for the compiler traces outputs only whose attributes are plain.
    """


def next_token_labels(labels):
    """labels [B, T] -> the label of the next token at each position, `IGNORE` at the last."""
    return nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE)


def chunked_cross_entropy(hidden_states, labels, head, vocab_size):
    """Sum of the cross-entropy of `head(hidden_states)` against `labels` over labelled tokens, and their number.

    Args:
        hidden_states: [B, T, hidden].
        labels: [B, T], already aligned with the positions; `IGNORE` entries are skipped.
        head: hidden states -> logits, soft-cap and scaling included.
        vocab_size: number of logits, which sets the length of a chunk.

    The logits of a chunk are recomputed in the backward pass (`torch.utils.checkpoint`), so at most one chunk is held.
    """
    hidden_states, labels = hidden_states.flatten(0, -2), labels.flatten().to(hidden_states.device)
    kept = labels != IGNORE
    rows = max(1, CHUNK_ELEMENTS // vocab_size)
    total = hidden_states.new_zeros((), dtype=torch.float32)
    for states, targets in zip(hidden_states.split(rows), labels.split(rows), strict=True):
        if torch.is_grad_enabled():
            total = total + checkpoint(_summed_cross_entropy, states, targets, head, use_reentrant=False)
        else:
            total = total + _summed_cross_entropy(states, targets, head)
    return total, kept.sum()


def _summed_cross_entropy(states, targets, head):
    return nn.functional.cross_entropy(head(states).float(), targets, ignore_index=IGNORE, reduction="sum")


def mean_over_step(total, count, num_items_in_batch):
    """A sum divided by the labelled tokens of the whole optimizer step, or of this batch where the step is not known."""
    divisor = count if num_items_in_batch is None else num_items_in_batch
    if isinstance(divisor, torch.Tensor):
        divisor = divisor.to(total.device)
        return total / divisor.clamp(min=1)
    return total / max(divisor, 1)


def share_of_step(count, num_items_in_batch):
    """This batch's part of the labelled tokens of the optimizer step; 1 where the step is not known."""
    if num_items_in_batch is None:
        return 1.0
    divisor = torch.as_tensor(num_items_in_batch, device=count.device)
    return count / divisor.clamp(min=1)


def load_balancing_loss(router_logits, top_k, scoring="softmax", token_mask=None, n_group=1, topk_group=1, selection="scores"):
    """E * sum_e f_e P_e of each layer, averaged over the layers.

    f_e is the number of assignments to expert e per token (they sum to `top_k`), P_e the mean share of the scores: a perfectly
    balanced router gives `top_k`, a collapsed one more (Fedus et al. 2021, arXiv:2101.03961 §2.2, in transformers' constant).
    Taken per layer, so that an imbalance in one layer cannot hide behind the opposite one in another. Counted are the experts
    that the router chose: where it chooses within groups, those of the best groups, though others have higher scores. The
    bias of `router_balance="bias"` is left out, as in the loss that DeepSeek-V3 adds to it (arXiv:2412.19437 §2.1.2). Under
    `sparsemixer`, whose draws the logits do not tell, the `top_k` highest scores are counted, as natively (Phi-3.5-MoE).

    Args:
        router_logits: one [tokens, experts] tensor per sparse layer.
        token_mask: [tokens], false at pads, which count for nothing.
        n_group, topk_group: groups of experts, and how many of them a token chooses from.
        selection: whether groups and experts are chosen by `scores` or by `logits`.
    """
    losses = []
    for logits in router_logits:
        scores = logits.sigmoid() if scoring == "sigmoid" else logits.softmax(-1)
        compared = logits if selection == "logits" else scores
        choice = keep_best_groups(compared, n_group, topk_group, GROUP_SCORES.get(scoring))
        chosen = torch.zeros_like(scores).scatter(1, choice.topk(top_k, dim=-1).indices, 1.0)
        share = scores / (scores.sum(-1, keepdim=True) + 1e-20)
        fraction, probability = _token_mean(chosen, token_mask), _token_mean(share, token_mask)
        losses.append(logits.shape[-1] * (fraction * probability).sum())
    return torch.stack(losses).mean()


def router_z_loss(router_logits, token_mask=None):
    """Mean of logsumexp(logits)^2, averaged over the layers (Zoph et al. 2022, arXiv:2202.08906 §3.1)."""
    return torch.stack([_token_mean(logits.logsumexp(-1).square(), token_mask) for logits in router_logits]).mean()


def _token_mean(values, token_mask):
    if token_mask is None:
        return values.mean(0)
    weight = token_mask.reshape(-1).to(values.device, values.dtype)
    weight = weight.view(-1, *[1] * (values.dim() - 1))
    return (values * weight).sum(0) / weight.sum().clamp(min=1)
