"""The models of the family, as the Auto classes load them: here the language models; the stack and task heads by name.

Notable here: the loss of a language-model head never holds the full logits in training, averages over the whole optimizer step
however it is cut, and adds the routers' balance terms in training only; evaluation loss is pure cross-entropy.
"""

import torch
from transformers.cache_utils import Cache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .configuration_variants import VariantsConfig
from .decoding import VariantsGenerationMixin
from .head_model import VariantsHeadModel
from .language_head import LanguageHead
from .losses import DeferredLogits, DeferredLogitsOutput, VariantsCausalLMOutput, next_token_labels
from .task_heads import (
    VariantsForQuestionAnswering,
    VariantsForSequenceClassification,
    VariantsForTokenClassification,
)
from .variants_base import POOLER, TASK_PARTS, VariantsPreTrainedModel
from .variants_model import VariantsModel


class VariantsLanguageModel(LanguageHead, VariantsHeadModel):
    """Shared body of the causal and the masked language model: they differ in how labels meet positions."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}
    _fsdp_plan = {"lm_head": "keep_full_weight"}
    _foreign_parts = (*POOLER, *TASK_PARTS)

    def __init__(self, config):
        super().__init__(config)
        self.build_head(self.text_config)
        self.post_init()

    def language_model(self, inputs, targets, logits_to_keep, skip_logits, num_items_in_batch):
        """Run stack, head and loss. targets: labels aligned with the positions, or None."""
        outputs = self.run(targets is not None, num_items_in_batch, inputs)
        logits, total, count = self.score(outputs.last_hidden_state, targets, logits_to_keep, skip_logits)
        loss, terms = None, self.router_terms(outputs.router_logits, inputs.get("attention_mask"))
        if targets is not None:
            loss = self.step_loss(total, count, terms, num_items_in_batch)
        output = DeferredLogitsOutput if isinstance(logits, DeferredLogits) else VariantsCausalLMOutput
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


# the Trainer shifts labels under label smoothing for the models that this table names
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["variants"] = "VariantsForCausalLM"

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
