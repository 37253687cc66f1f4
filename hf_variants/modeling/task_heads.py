"""The task heads: classification of rows and of tokens, and spans that answer a question.

Notable here: what is read of a row and what classifies it were chosen at construction (`pooling.POOLINGS`,
`head_layers.TASK_HEADS`); losses are averaged over the whole optimizer step, as those of the language models.
"""

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    QuestionAnsweringModelOutput,
    SequenceClassifierOutputWithPast,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .head_layers import build_score, build_task_transform, token_classifier_dropout
from .head_model import VariantsHeadModel
from .losses import IGNORE, chunked_cross_entropy
from .pooling import POOLINGS, real_tokens
from .variants_base import POOLER, TASK_PARTS


class VariantsTaskModel(VariantsHeadModel):
    """Shared body of the task heads. `transform` is the language-model head's layer under `task_head="transform"`."""

    _fresh_parts = (*POOLER, *TASK_PARTS, "transform.")

    def __init__(self, config, add_pooling_layer=False):
        super().__init__(config, add_pooling_layer)
        self.num_labels = config.num_labels
        self.transform = build_task_transform(config)

    def task_forward(self, labelled, num_items_in_batch, inputs):
        outputs = self.run(labelled, num_items_in_batch, inputs)
        return outputs, self.router_terms(outputs.router_logits, inputs.get("attention_mask"))


class VariantsForSequenceClassification(VariantsTaskModel):
    """The stack with a classifier of rows: `classifier_pooling` says what of a row it reads, `task_head` what it is."""

    def __init__(self, config):
        super().__init__(config, add_pooling_layer=config.task_head == "pooler")
        self.pool, self.pools_late = POOLINGS[config.classifier_pooling], config.classifier_pooling == "late"
        self.score, self.dropout = build_score(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutputWithPast:
        r"""labels: [B] classes or regression targets, or [B, num_labels] for several labels or targets at once."""
        inputs = dict(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        outputs, terms = self.task_forward(labels is not None, num_items_in_batch, inputs)
        logits = self.logits_of(outputs, input_ids, attention_mask)
        loss = None
        if labels is not None:
            total, count = self.loss_of(logits, labels.to(logits.device))
            loss = self.step_loss(total, count, terms, num_items_in_batch)
        return SequenceClassifierOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def logits_of(self, outputs, input_ids, attention_mask):
        """Logits [B, num_labels]. Raises ValueError where pads cannot be told from tokens."""
        states = outputs.last_hidden_state
        real = real_tokens(states, input_ids, attention_mask, self.config.pad_token_id)
        if self.pools_late:
            return self.pool(self.classify(states), real)
        pooled = outputs.get("pooler_output")
        return self.classify(self.pool(states, real) if pooled is None else pooled)

    def classify(self, states):
        return self.score(self.dropout(self.transform(states)))

    def loss_of(self, logits, labels):
        """Sum of the losses over the labels, and their number, as the Trainer counts them.

        The kind of problem is taken from the labels where the config does not say.
        """
        if self.config.problem_type is None:
            whole = not labels.dtype.is_floating_point
            single = "single_label_classification" if whole else "multi_label_classification"
            self.config.problem_type = "regression" if self.num_labels == 1 else single
        if self.config.problem_type == "single_label_classification":
            return chunked_cross_entropy(logits, labels.view(-1), nn.Identity(), self.num_labels)
        scores, labels = logits.float().reshape(-1), labels.float().reshape(-1)
        element = ELEMENT_LOSSES[self.config.problem_type]
        return element(scores, labels, reduction="sum"), torch.tensor(labels.numel(), device=labels.device)


# problem_type -> loss of one score
ELEMENT_LOSSES = {
    "regression": nn.functional.mse_loss,
    "multi_label_classification": nn.functional.binary_cross_entropy_with_logits,
}


class VariantsForTokenClassification(VariantsTaskModel):
    """The stack with a linear head on every token."""

    def __init__(self, config):
        super().__init__(config)
        self.dropout = nn.Dropout(token_classifier_dropout(config))
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        r"""labels: [B, T] classes; entries of -100 are skipped."""
        inputs = dict(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        outputs, terms = self.task_forward(labels is not None, num_items_in_batch, inputs)
        logits = self.score(self.dropout(self.transform(outputs.last_hidden_state)))
        loss = None
        if labels is not None:
            total, count = chunked_cross_entropy(logits, labels, nn.Identity(), self.num_labels)
            loss = self.step_loss(total, count, terms, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class VariantsForQuestionAnswering(VariantsTaskModel):
    """The stack with a head that scores every token as the start and as the end of an answer."""

    def __init__(self, config):
        super().__init__(config)
        self.dropout = nn.Dropout(config.qa_dropout)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        r"""start_positions, end_positions: [B]; positions outside the row are skipped, and pads are no candidates."""
        inputs = dict(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        labelled = start_positions is not None and end_positions is not None
        outputs, terms = self.task_forward(labelled, num_items_in_batch, inputs)
        states = self.dropout(self.transform(outputs.last_hidden_state))
        start_logits, end_logits = self.qa_outputs(states).unbind(-1)
        loss = None
        if labelled:
            sides = [(start_logits, start_positions), (end_logits, end_positions)]
            real = attention_mask if attention_mask is not None and attention_mask.dim() == 2 else None
            found = [_position_loss(logits, positions.to(logits.device), real) for logits, positions in sides]
            total, count = (sum(pair) / 2 for pair in zip(*found, strict=True))
            loss = self.step_loss(total, count, terms, num_items_in_batch)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _position_loss(logits, positions, real):
    positions = positions.view(-1)
    inside = (positions >= 0) & (positions < logits.shape[1])
    targets = torch.where(inside, positions, IGNORE)
    logits = logits.float()
    if real is not None:
        logits = logits.masked_fill(real[:, -logits.shape[1] :].to(logits.device) == 0, torch.finfo(logits.dtype).min)
    loss = nn.functional.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")
    return loss, inside.sum()
