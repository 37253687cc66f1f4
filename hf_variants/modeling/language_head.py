"""From states to logits and the summed cross-entropy: the head that language models of one and of two stacks share.

Notable here: with labels, in training, the full logits are never held; they are computed when somebody reads them.
"""

import torch
from torch import nn

from .head_layers import build_transform
from .linear_cross_entropy import LinearCrossEntropy
from .losses import IGNORE, DeferredLogits, chunked_cross_entropy
from .plain_linear import is_plain_linear
from .products import project


def keep_positions(hidden_states, logits_to_keep):
    """The hidden states [B, T, hidden] that logits are wanted of.

    Args:
        logits_to_keep: the last so many positions, 0 for all; or positions [n] of every row; or positions [B, n] of each
            row; or a boolean [B, T], which gives the chosen ones of all rows as [chosen, hidden].
    """
    if isinstance(logits_to_keep, int):
        return hidden_states[:, slice(-logits_to_keep, None) if logits_to_keep else slice(None)]
    if logits_to_keep.dim() == 1:
        return hidden_states[:, logits_to_keep]
    if logits_to_keep.dtype == torch.bool:
        return hidden_states[logits_to_keep]
    rows = torch.arange(hidden_states.shape[0], device=hidden_states.device).unsqueeze(1)
    return hidden_states[rows, logits_to_keep]


class LanguageHead:
    """Methods of a language model with the parts `transform` and `lm_head`, on the stack whose config is `text_config`."""

    # a constant per token [1, vocab] that is added to what `lm_head` gives, or None
    logits_constant = None

    def build_head(self, config):
        """Make the parts; `config` is that of the stack they stand on."""
        self.vocab_size = config.vocab_size
        self.transform, width = build_transform(config)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=config.lm_head_bias)

    def head(self, hidden_states):
        """Logits of transformed states, scaled and soft-capped (Gemma 2, arXiv:2408.00118 §2) as the config says."""
        logits = project(self.lm_head, hidden_states)
        if self.logits_constant is not None:
            logits = logits + self.logits_constant
        config = self.text_config
        if config.logits_scaling != 1:
            logits = logits / config.logits_scaling
        cap = config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def score(self, hidden_states, targets, logits_to_keep, skip_logits):
        """Logits of states [B, T, hidden], or what computes them; and sum and number of their losses, None without targets.

        Args:
            targets: labels aligned with the positions [B, T], or None.
            logits_to_keep, skip_logits: as in the forward of the models.
        """
        hidden_states = self.transform(hidden_states)
        kept = keep_positions(hidden_states, logits_to_keep)
        if skip_logits is None:
            skip_logits = self.training and targets is not None
        logits = DeferredLogits(kept, self.head) if skip_logits else self.head(kept)
        if targets is None:
            return logits, None, None
        whole = not skip_logits and kept.shape == hidden_states.shape
        states, head = (logits, nn.Identity()) if whole else (hidden_states, self.head)
        return logits, *self.summed_loss(states, targets, head)

    def summed_loss(self, states, targets, head):
        """Summed cross-entropy over the labelled tokens, and their number; fused with a head that is a plain linear layer."""
        fused = head == self.head and torch.is_grad_enabled() and is_plain_linear(self.lm_head)
        if not fused:
            return chunked_cross_entropy(states, targets, head, self.text_config.vocab_size)
        states, targets = states.flatten(0, -2), targets.flatten().to(states.device)
        biases = [bias.flatten() for bias in (self.lm_head.bias, self.logits_constant) if bias is not None]
        options = (self.text_config.logits_scaling, self.text_config.final_logit_softcapping)
        loss = LinearCrossEntropy.apply(states, self.lm_head.weight, sum(biases) if biases else None, targets, *options)
        return loss, (targets != IGNORE).sum()
