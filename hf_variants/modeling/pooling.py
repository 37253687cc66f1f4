"""From the states of a row to one vector: the first or last real token, the mean of the real ones, BERT's pooler.

Notable here: pads never count, wherever they stand, so a row's vector does not depend on its batch mates; `POOLINGS` is the
contents.
"""

from dataclasses import dataclass

import torch
from torch import nn
from transformers.utils import ModelOutput


@dataclass
class PooledModelOutput(ModelOutput):
    """Output of a stack with a pooler. pooler_output: [B, hidden]."""

    last_hidden_state: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    past_key_values: object | None = None
    hidden_states: tuple | None = None
    attentions: tuple | None = None
    router_logits: tuple | None = None


class VariantsPooler(nn.Module):
    """tanh(dense(state of the first real token)) (BERT 2018, arXiv:1810.04805)."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states, real):
        return torch.tanh(self.dense(first_token(hidden_states, real)))


def first_token(states, real):
    """States [B, T, width] -> [B, width] at the first column where `real` [B, T] is true; `real` None: the first column."""
    if real is None:
        return states[:, 0]
    return states[torch.arange(len(states), device=states.device), real.to(torch.int8).argmax(dim=1)]


def last_token(states, real):
    """As `first_token`, at the last such column."""
    if real is None:
        return states[:, -1]
    columns = torch.arange(states.shape[1], device=states.device)
    return states[torch.arange(len(states), device=states.device), torch.where(real, columns, 0).amax(dim=1)]


def mean_of_tokens(states, real):
    """Mean [B, width] over the columns where `real` is true; zeros for a row of pads."""
    if real is None:
        return states.mean(dim=1)
    weights = real.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


# classifier_pooling -> states and real tokens to one vector per row; `late` averages logits in place of states
POOLINGS = {"first": first_token, "last": last_token, "mean": mean_of_tokens, "late": mean_of_tokens}


def real_tokens(hidden_states, input_ids, attention_mask, pad_token_id):
    """Which tokens [B, T] are no pads. Raises ValueError where pads cannot be told from tokens."""
    batch, length = hidden_states.shape[:2]
    if attention_mask is not None:
        return attention_mask[:, -length:].to(hidden_states.device, torch.bool)
    if pad_token_id is not None and input_ids is not None:
        return input_ids.to(hidden_states.device) != pad_token_id
    if batch == 1:
        return torch.ones(1, length, dtype=torch.bool, device=hidden_states.device)
    raise ValueError(
        f"a batch of {batch} rows without attention_mask and with pad_token_id=None: pads cannot be told from tokens; "
        "give attention_mask, or set config.pad_token_id"
    )
