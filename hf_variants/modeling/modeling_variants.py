"""The models of the family: the stack and its heads, as the Auto classes load them.

Notable here: the loss of a language-model head never holds the full logits in training, averages over the whole optimizer step
however it is cut, and adds the routers' balance terms in training only; evaluation loss is pure cross-entropy.
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
from transformers.utils import TransformersKwargs, can_return_tuple, logging

from .configuration_variants import VariantsConfig
from .decoding import VariantsGenerationMixin
from .experts import VariantsSparseMLP
from .linear_cross_entropy import LinearCrossEntropy, is_plain_linear
from .losses import (
    CHUNK_ELEMENTS,
    IGNORE,
    DeferredLogits,
    DeferredLogitsOutput,
    VariantsCausalLMOutput,
    chunked_cross_entropy,
    load_balancing_loss,
    mean_over_step,
    next_token_labels,
    router_z_loss,
    share_of_step,
)
from .router_balance import add_up
from .variants_base import VariantsPreTrainedModel
from .variants_model import VariantsModel

logger = logging.get_logger(__name__)


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


class VariantsHeadModel(VariantsPreTrainedModel):
    """A stack with a head: runs the stack, and adds the routers' terms to a training loss."""

    def __init__(self, config):
        super().__init__(config)
        self.model = VariantsModel(config)
        coefs = {"aux_loss": config.router_aux_loss_coef, "z_loss": config.router_z_loss_coef}
        self.router_coefs = {name: coef for name, coef in coefs.items() if coef and config.has_experts}
        self.router_sums = {}

    def run(self, labelled, num_items_in_batch, kwargs):
        """The stack's output, with router logits where a training loss needs them; kwargs are the forward's."""
        if self.training and self.router_coefs:
            if labelled:
                kwargs = {**kwargs, "output_router_logits": True}
            elif num_items_in_batch is not None:
                logger.warning_once(
                    "the Trainer keeps the labels to itself (label_smoothing_factor or compute_loss_func), so the loss lacks "
                    f"{list(self.router_coefs)}: in compute_loss_func, add them from the output with "
                    "output_router_logits=True, or balance by router_balance='bias'"
                )
        return self.model(**kwargs)

    def router_terms(self, router_logits, attention_mask):
        """Unweighted balance and z-loss of this batch, pads left out, for the coefficients in use."""
        if not (self.training and self.router_coefs and router_logits):
            return {}
        if torch.is_grad_enabled() and self._lost_gradient(router_logits):
            raise ValueError(
                "activation checkpointing with use_reentrant=True runs the layers without gradients first, so that the router "
                f"losses {list(self.router_coefs)} would train nothing; set use_reentrant=False"
            )
        mask = attention_mask if attention_mask is not None and attention_mask.dim() == 2 else None
        if mask is not None:
            length = router_logits[0].shape[0] // mask.shape[0]
            mask = mask[:, -length:]
        config, terms = self.config, {}
        if "aux_loss" in self.router_coefs:
            terms["aux_loss"] = load_balancing_loss(router_logits, config.num_experts_per_tok, config.router_scoring, mask)
        if "z_loss" in self.router_coefs:
            terms["z_loss"] = router_z_loss(router_logits, mask)
        add_up(self.router_sums, terms)
        return terms

    def _lost_gradient(self, router_logits):
        """Whether routers are trained, but no gradient leads from their logits to them."""
        trained = any(
            module.gate.weight.requires_grad for module in self.model.modules() if isinstance(module, VariantsSparseMLP)
        )
        return trained and not any(logits.requires_grad for logits in router_logits)

    def add_terms(self, loss, terms, count, num_items_in_batch):
        """loss + the weighted terms, each scaled by this batch's share of the optimizer step."""
        share = share_of_step(count, num_items_in_batch)
        for name, value in terms.items():
            loss = loss + self.router_coefs[name] * share * value.to(loss.device)
        return loss


class VariantsLanguageModel(VariantsHeadModel):
    """Shared body of the causal and the masked language model: they differ in how labels meet positions."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config):
        super().__init__(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    def head(self, hidden_states):
        """Logits of hidden states, scaled and soft-capped (Gemma 2, arXiv:2408.00118 §2) as the config says."""
        logits = self.lm_head(hidden_states)
        if self.config.logits_scaling != 1:
            logits = logits / self.config.logits_scaling
        cap = self.config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def language_model(self, inputs, targets, logits_to_keep, skip_logits, num_items_in_batch):
        """Run stack, head and loss. targets: labels aligned with the positions, or None."""
        outputs = self.run(targets is not None, num_items_in_batch, inputs)
        hidden_states = outputs.last_hidden_state
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
            router_logits=outputs.router_logits if self._shows_router_logits(inputs) else None,
            **terms,
        )

    def summed_loss(self, states, targets, head):
        """Summed cross-entropy over the labelled tokens, and their number; fused with a head that is a plain linear layer."""
        fused = head == self.head and torch.is_grad_enabled() and is_plain_linear(self.lm_head)
        if not fused:
            return chunked_cross_entropy(states, targets, head, self.config.vocab_size)
        states, targets = states.flatten(0, -2), targets.flatten().to(states.device)
        config, rows = self.config, max(1, CHUNK_ELEMENTS // self.config.vocab_size)
        weights = (self.lm_head.weight, self.lm_head.bias)
        options = (config.logits_scaling, config.final_logit_softcapping, rows)
        return LinearCrossEntropy.apply(states, *weights, targets, *options), (targets != IGNORE).sum()

    def _shows_router_logits(self, inputs):
        return inputs.get("output_router_logits", self.config.output_router_logits)


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
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        skip_logits: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VariantsCausalLMOutput:
        r"""As `VariantsForCausalLM`, but position t is scored against label t."""
        inputs = dict(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return self.language_model(inputs, labels, 0, skip_logits, num_items_in_batch)


class VariantsTaskModel(VariantsHeadModel):
    """Shared body of the task heads."""

    def task_forward(self, labelled, num_items_in_batch, inputs):
        outputs = self.run(labelled, num_items_in_batch, inputs)
        return outputs, self.router_terms(outputs.router_logits, inputs.get("attention_mask"))

    def classifier_dropout(self, config):
        given = getattr(config, "classifier_dropout", None)
        return nn.Dropout(config.hidden_dropout if given is None else given)


class VariantsForSequenceClassification(VariantsTaskModel):
    """The stack with a linear head on one token of the row: the last real one, or the first when `is_causal=False`."""

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
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
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        outputs, terms = self.task_forward(labels is not None, num_items_in_batch, inputs)
        hidden_states = outputs.last_hidden_state
        index = self.pooled_index(input_ids, attention_mask, hidden_states)
        logits = self.score(hidden_states[torch.arange(hidden_states.shape[0], device=index.device), index])
        loss = None
        if labels is not None:
            total, count = self.loss_of(logits, labels.to(logits.device))
            loss = mean_over_step(total, count, num_items_in_batch)
            loss = self.add_terms(loss, terms, count, num_items_in_batch)
        return SequenceClassifierOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def pooled_index(self, input_ids, attention_mask, hidden_states):
        """Index [B] of the token that is classified. Raises ValueError where pads cannot be told from tokens."""
        batch, length = hidden_states.shape[:2]
        columns = torch.arange(length, device=hidden_states.device).expand(batch, -1)
        if attention_mask is not None:
            real = attention_mask[:, -length:].to(torch.bool)
        elif self.config.pad_token_id is not None and input_ids is not None:
            real = input_ids != self.config.pad_token_id
        elif batch == 1:
            real = torch.ones_like(columns, dtype=torch.bool)
        else:
            raise ValueError(
                f"a batch of {batch} rows without attention_mask and with pad_token_id=None: pads cannot be told from tokens; "
                "give attention_mask, or set config.pad_token_id"
            )
        if self.config.is_causal:
            return torch.where(real, columns, 0).amax(dim=1)
        return torch.where(real, columns, length).amin(dim=1).clamp(max=length - 1)

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
        self.num_labels = config.num_labels
        self.dropout = self.classifier_dropout(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
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
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        outputs, terms = self.task_forward(labels is not None, num_items_in_batch, inputs)
        logits = self.score(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            total, count = chunked_cross_entropy(logits, labels, nn.Identity(), self.num_labels)
            loss = mean_over_step(total, count, num_items_in_batch)
            loss = self.add_terms(loss, terms, count, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class VariantsForQuestionAnswering(VariantsTaskModel):
    """The stack with a head that scores every token as the start and as the end of an answer."""

    def __init__(self, config):
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        r"""start_positions, end_positions: [B]; positions outside the row are skipped."""
        inputs = dict(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        labelled = start_positions is not None and end_positions is not None
        outputs, terms = self.task_forward(labelled, num_items_in_batch, inputs)
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        loss = None
        if labelled:
            sides = [(start_logits, start_positions), (end_logits, end_positions)]
            found = [_position_loss(logits, positions.to(logits.device)) for logits, positions in sides]
            total, count = (sum(pair) / 2 for pair in zip(*found, strict=True))
            loss = mean_over_step(total, count, num_items_in_batch)
            loss = self.add_terms(loss, terms, count, num_items_in_batch)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _position_loss(logits, positions):
    positions = positions.view(-1)
    inside = (positions >= 0) & (positions < logits.shape[1])
    targets = torch.where(inside, positions, IGNORE)
    loss = nn.functional.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum")
    return loss, inside.sum()


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
