"""The models of the family, as the Auto classes load them: here the language models; the stack and task heads by name.

Notable here: the loss of a language-model head never holds the full logits in training, averages over the whole optimizer step
however it is cut, and adds the routers' balance terms in training only; evaluation loss is pure cross-entropy.
"""

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .configuration_variants import VariantsConfig
from .decoding import VariantsGenerationMixin
from .head_layers import build_transform
from .head_model import VariantsHeadModel
from .linear_cross_entropy import LinearCrossEntropy
from .losses import (
    IGNORE,
    DeferredLogits,
    DeferredLogitsOutput,
    VariantsCausalLMOutput,
    chunked_cross_entropy,
    mean_over_step,
    next_token_labels,
)
from .plain_linear import is_plain_linear
from .products import project
from .task_heads import (
    VariantsForQuestionAnswering,
    VariantsForSequenceClassification,
    VariantsForTokenClassification,
)
from .variants_base import POOLER, TASK_PARTS, VariantsPreTrainedModel
from .variants_model import VariantsModel


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


class VariantsLanguageModel(VariantsHeadModel):
    """Shared body of the causal and the masked language model: they differ in how labels meet positions."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}
    _fsdp_plan = {"lm_head": "keep_full_weight"}
    _foreign_parts = (*POOLER, *TASK_PARTS)

    def __init__(self, config):
        super().__init__(config)
        text = self.text_config
        self.vocab_size = text.vocab_size
        self.transform, width = build_transform(text)
        self.lm_head = nn.Linear(width, text.vocab_size, bias=text.lm_head_bias)
        self.post_init()

    def head(self, hidden_states):
        """Logits of transformed states, scaled and soft-capped (Gemma 2, arXiv:2408.00118 §2) as the config says."""
        logits = project(self.lm_head, hidden_states)
        if self.text_config.logits_scaling != 1:
            logits = logits / self.text_config.logits_scaling
        cap = self.text_config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def language_model(self, inputs, targets, logits_to_keep, skip_logits, num_items_in_batch):
        """Run stack, head and loss. targets: labels aligned with the positions, or None."""
        outputs = self.run(targets is not None, num_items_in_batch, inputs)
        hidden_states = self.transform(outputs.last_hidden_state)
        kept = keep_positions(hidden_states, logits_to_keep)
        if skip_logits is None:
            skip_logits = self.training and targets is not None
        logits = DeferredLogits(kept, self.head) if skip_logits else self.head(kept)
        loss, terms = None, self.router_terms(outputs.router_logits, inputs.get("attention_mask"))
        if targets is not None:
            whole = not skip_logits and kept.shape == hidden_states.shape
            states, head = (logits, nn.Identity()) if whole else (hidden_states, self.head)
            total, count = self.summed_loss(states, targets, head)
            loss = mean_over_step(total, count, num_items_in_batch)
            loss = self.add_terms(loss, terms, count, num_items_in_batch)
        output = DeferredLogitsOutput if skip_logits else VariantsCausalLMOutput
        return output(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.get("cross_attentions"),
            router_logits=outputs.router_logits if self._shows_router_logits(inputs) else None,
            **terms,
        )

    def summed_loss(self, states, targets, head):
        """Summed cross-entropy over the labelled tokens, and their number; fused with a head that is a plain linear layer."""
        fused = head == self.head and torch.is_grad_enabled() and is_plain_linear(self.lm_head)
        if not fused:
            return chunked_cross_entropy(states, targets, head, self.text_config.vocab_size)
        states, targets = states.flatten(0, -2), targets.flatten().to(states.device)
        weights = (self.lm_head.weight, self.lm_head.bias)
        options = (self.text_config.logits_scaling, self.text_config.final_logit_softcapping)
        return LinearCrossEntropy.apply(states, *weights, targets, *options), (targets != IGNORE).sum()

    def _shows_router_logits(self, inputs):
        return inputs.get("output_router_logits", self.text_config.output_router_logits)


class VariantsForCausalLM(VariantsLanguageModel, VariantsGenerationMixin):
    """The stack with a language-model head that predicts the next token."""

    def __init__(self, config):
        if not config.is_causal:
            raise ValueError(
                "VariantsForCausalLM predicts the next token, which is_causal=False would let every layer see; use "
                "VariantsForMaskedLM, or is_causal=True"
            )
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | dict | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        skip_logits: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VariantsCausalLMOutput:
        r"""Arguments of `VariantsModel.forward`, and:

        Args:
            labels: [B, T]; position t is scored against label t + 1, entries of -100 are skipped.
            shift_labels: [B, T], labels already moved to their positions; takes the place of `labels`.
            logits_to_keep: the last positions to return logits for, 0 for all; or their indices.
            skip_logits: leave logits to be computed when they are read. None: only in training with labels.
            num_items_in_batch: labelled tokens of the whole optimizer step; the Trainer gives it.
        """
        # not named in the signature: the Trainer would take it for a second set of labels that every batch must bring
        targets = kwargs.pop("shift_labels", None)
        if targets is None and labels is not None:
            targets = next_token_labels(labels)
        inputs = dict(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return self.language_model(inputs, targets, logits_to_keep, skip_logits, num_items_in_batch)


class VariantsForMaskedLM(VariantsLanguageModel):
    """The bidirectional stack with a language-model head that fills in masked tokens (BERT 2018, arXiv:1810.04805)."""

    def __init__(self, config):
        if config.is_causal:
            raise ValueError(
                "VariantsForMaskedLM fills in tokens from both sides, but is_causal=True hides the right one; set "
                "is_causal=False"
            )
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | dict | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        skip_logits: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VariantsCausalLMOutput:
        r"""As `VariantsForCausalLM`, but position t is scored against label t; `token_type_ids` as in `VariantsModel`."""
        inputs = dict(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return self.language_model(inputs, labels, 0, skip_logits, num_items_in_batch)


__all__ = [
    "VariantsConfig",
    "VariantsForCausalLM",
    "VariantsForMaskedLM",
    "VariantsForQuestionAnswering",
    "VariantsForSequenceClassification",
    "VariantsForTokenClassification",
    "VariantsModel",
    "VariantsPreTrainedModel",
]
