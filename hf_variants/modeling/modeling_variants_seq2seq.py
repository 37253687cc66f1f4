"""Encoder-decoders: two stacks of the family, joined by cross-attention, and the language model that generates from them.

Notable here: both stacks are `VariantsModel`s, so every toggle of the family holds in each; the encoder runs once per input,
and what cross-attention makes of its states is cached; the router losses of both stacks enter the training loss.
"""

from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqMoEModelOutput, Seq2SeqMoEOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.import_utils import is_tracing

from .configuration_variants_seq2seq import VariantsSeq2SeqConfig
from .cross_attention import document_mask
from .decoding import VariantsGenerationMixin
from .expert_loading import quantized_as
from .head_model import VariantsHeadModel, router_coefs_of, stack_terms
from .language_head import LanguageHead
from .losses import IGNORE, DeferredLogits, DeferredOutput
from .router_balance import add_up
from .variants_base import LANGUAGE_PARTS, VariantsPreTrainedModel
from .variants_model import VariantsModel

# what is asked of both stacks, and what the config of the whole may ask for
ASKED = ("output_attentions", "output_hidden_states", "output_router_logits")


@dataclass
class DeferredSeq2SeqOutput(DeferredOutput, Seq2SeqMoEOutput):
    """The output where logits were not asked for: they are computed on first access."""


def shift_right(labels, config):
    """labels [B, T] -> decoder inputs [B, T]: one to the right behind the start, -100 replaced by the pad.

    Raises:
        ValueError: where there is something to replace, and no pad.
    """
    ids = labels.clone()
    if config.pad_token_id is not None:
        ids.masked_fill_(ids == IGNORE, config.pad_token_id)
    elif not is_tracing(ids) and bool((ids == IGNORE).any()):
        raise ValueError("labels hold -100, which decoder inputs have as the pad, but pad_token_id=None; set pad_token_id")
    return torch.cat((DECODER_STARTS[config.decoder_start](ids, config), ids[:, :-1]), dim=1)


def start_with_token(ids, config):
    return torch.full_like(ids[:, :1], config.decoder_start_token_id)


def start_with_last(ids, config):
    last = (ids != config.pad_token_id).sum(dim=1, keepdim=True) - 1
    return ids.gather(1, last.clamp(min=0))


# decoder_start -> labels with pads [B, T] -> the first decoder inputs [B, 1]
DECODER_STARTS = {"token": start_with_token, "last_token": start_with_last}


def check_encoder_mask(attention_mask):
    """Refuse a mask of the encoder that is not [B, S], or has a row without a real token, which nothing could be read from."""
    if attention_mask is None or is_tracing(attention_mask):
        return
    if attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask of the encoder has the shape {tuple(attention_mask.shape)}; give [batch, tokens], 1 at real "
            "tokens"
        )
    if empty := (attention_mask == 0).all(dim=1).nonzero().flatten().tolist():
        raise ValueError(f"attention_mask hides every token of row {empty[0]}: the decoder would have nothing to attend to")


class VariantsSeq2SeqPreTrainedModel(VariantsPreTrainedModel):
    """Base class of the encoder-decoders of the family."""

    config: VariantsSeq2SeqConfig
    _tied_weights_keys = {"encoder.embed_tokens.weight": "decoder.embed_tokens.weight"}
    _foreign_parts = (*LANGUAGE_PARTS, "final_logits_bias")

    # the stacks record what they give by themselves
    @property
    def _can_record_outputs(self):
        return {}

    def get_expanded_tied_weights_keys(self, all_submodels=False):
        """As transformers', which ties everything or nothing: here the two tables and the head are tied apart."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        tied = {"encoder.": self.config.share_embeddings, "lm_head.": self.config.tie_word_embeddings}
        return {
            target: source
            for target, source in self._tied_weights_keys.items()
            if tied[next(part for part in tied if target.removeprefix("model.").startswith(part))]
        }


class VariantsSeq2SeqModel(VariantsSeq2SeqPreTrainedModel):
    """Encoder and decoder without a head.

    Args:
        config: a `VariantsSeq2SeqConfig`.
    """

    def __init__(self, config):
        super().__init__(config)
        with quantized_as(config, config.encoder), quantized_as(config, config.decoder):
            self.encoder, self.decoder = VariantsModel(config.encoder), VariantsModel(config.decoder)
        self.post_init()

    def get_input_embeddings(self):
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value):
        self.encoder.embed_tokens = value
        if self.config.share_embeddings:
            self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | dict | None = None,
        encoder_outputs: tuple | BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        decoder_inputs_embeds: torch.FloatTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        decoder_position_ids: torch.LongTensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqMoEModelOutput:
        r"""Run the encoder, unless its output is given, and the decoder.

        Args:
            input_ids: [B, S]; or inputs_embeds: [B, S, width].
            attention_mask: [B, S], 1 at real tokens of the encoder; all of them when absent, whatever the ids.
            decoder_input_ids: [B, T]; or decoder_inputs_embeds: [B, T, width].
            decoder_attention_mask: as `VariantsModel`'s attention_mask.
            encoder_outputs: what an earlier forward of the encoder gave, its states [B, S, hidden] first.
            past_key_values: an `EncoderDecoderCache`.
            position_ids, decoder_position_ids: [B, S] and [B, T]. Where they start again, a new document starts; the n-th
                document of a decoder row attends to the n-th of the encoder row, and there must be as many.
            token_type_ids: [B, S], of the encoder.

        Raises:
            ValueError: as `VariantsModel`; for a row of the encoder that is nothing but pads.
        """
        kwargs = self._asked(kwargs)
        if encoder_outputs is None or past_key_values is None:
            check_encoder_mask(attention_mask)
        if encoder_outputs is None:
            inputs = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "token_type_ids": token_type_ids}
            inputs |= {"attention_mask": attention_mask, "position_ids": position_ids}
            encoder_outputs = self.encoder(**inputs, use_cache=False, **kwargs)
        states = encoder_outputs[0]
        seen = document_mask(
            states, attention_mask, position_ids, decoder_position_ids, decoder_attention_mask, past_key_values
        )
        outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            encoder_hidden_states=states,
            encoder_attention_mask=seen,
            **kwargs,
        )
        given = encoder_outputs if isinstance(encoder_outputs, dict) else {}
        return Seq2SeqMoEModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            decoder_router_logits=outputs.router_logits,
            cross_attentions=outputs.get("cross_attentions"),
            encoder_last_hidden_state=states,
            encoder_hidden_states=given.get("hidden_states"),
            encoder_attentions=given.get("attentions"),
            encoder_router_logits=given.get("router_logits"),
        )

    def _asked(self, kwargs):
        """`kwargs`, with the outputs that the config of the whole asks for."""
        wanted = {name: kwargs.get(name, getattr(self.config, name, None)) for name in ASKED}
        return {**kwargs, **{name: value for name, value in wanted.items() if value is not None}}


class VariantsForSeq2SeqLM(LanguageHead, VariantsSeq2SeqPreTrainedModel, VariantsHeadModel, VariantsGenerationMixin):
    """An encoder-decoder with a language-model head on the decoder."""

    _tied_weights_keys = {
        "lm_head.weight": "model.decoder.embed_tokens.weight",
        "model.encoder.embed_tokens.weight": "model.decoder.embed_tokens.weight",
    }
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}
    _foreign_parts = ()

    def __init__(self, config):
        super().__init__(config)
        self.build_head(config.decoder)
        if config.final_logits_bias:
            self.register_buffer("final_logits_bias", torch.zeros(1, config.vocab_size))
        self.router_coefs = {f"encoder_{name}": coef for name, coef in router_coefs_of(config.encoder).items()}
        self.router_coefs |= {f"decoder_{name}": coef for name, coef in router_coefs_of(config.decoder).items()}
        self.post_init()

    @property
    def text_config(self):
        return self.config.decoder

    def build_stack(self, config, add_pooling_layer):
        return VariantsSeq2SeqModel(config)

    @property
    def generator(self):
        return self.model.decoder

    @property
    def logits_constant(self):
        return self._buffers.get("final_logits_bias")

    def prepare_decoder_input_ids_from_labels(self, labels):
        """Decoder inputs [B, T] of labels [B, T]; collators call it, so that the Trainer may keep the labels to itself."""
        return shift_right(labels, self.config)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | dict | None = None,
        encoder_outputs: tuple | BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        decoder_inputs_embeds: torch.FloatTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        decoder_position_ids: torch.LongTensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        skip_logits: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqMoEOutput:
        r"""Arguments of `VariantsSeq2SeqModel.forward`, and:

        Args:
            labels: [B, T]; position t is scored against label t, entries of -100 are skipped. Without decoder inputs, these
                are the labels moved one to the right, and no cache is made unless `use_cache` asks for one.
            logits_to_keep: the last positions to return logits for, 0 for all; or their indices.
            skip_logits: leave logits to be computed when they are read. None: only in training with labels.
            num_items_in_batch: labelled tokens of the whole optimizer step; the Trainer gives it.
        """
        if labels is not None:
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = shift_right(labels, self.config)
            use_cache = False if use_cache is None else use_cache
        inputs = dict(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            position_ids=position_ids,
            decoder_position_ids=decoder_position_ids,
            token_type_ids=token_type_ids,
            use_cache=use_cache,
            **kwargs,
        )
        outputs = self.run(labels is not None, num_items_in_batch, inputs)
        logits, total, count = self.score(outputs.last_hidden_state, labels, logits_to_keep, skip_logits)
        loss, terms = None, {}
        if labels is not None:
            scored = labels != IGNORE if decoder_attention_mask is None else decoder_attention_mask
            terms = self.router_terms(outputs, {"encoder": attention_mask, "decoder": scored})
            loss = self.step_loss(total, count, terms, num_items_in_batch)
        output = DeferredSeq2SeqOutput if isinstance(logits, DeferredLogits) else Seq2SeqMoEOutput
        return output(loss=loss, logits=logits, **self.shown(outputs, inputs), **terms)

    def shown(self, outputs, inputs):
        """What the output tells of the stacks: router logits only where they were asked for, not where a loss needed them."""
        asked = inputs.get("output_router_logits", getattr(self.config, "output_router_logits", False))
        left_out = ("last_hidden_state", *(() if asked else ("encoder_router_logits", "decoder_router_logits")))
        return {name: value for name, value in outputs.items() if name not in left_out}

    def router_terms(self, outputs, masks):
        """Unweighted router losses of both stacks, `encoder_aux_loss` and so on, pads left out."""
        terms = {}
        for name, mask in masks.items():
            before = f"{name}_"
            coefs = {term.removeprefix(before): coef for term, coef in self.router_coefs.items() if term.startswith(before)}
            logits = outputs.get(f"{name}_router_logits")
            if self.training and coefs and logits:
                mask = mask if isinstance(mask, torch.Tensor) else None
                stack = getattr(self.model, name)
                found = stack_terms(stack, stack.config, coefs, logits, mask)
                terms |= {before + term: value for term, value in found.items()}
        add_up(self.router_sums, terms)
        return terms

    def resize_token_embeddings(self, new_num_tokens=None, pad_to_multiple_of=None, mean_resizing=True):
        """As transformers', for both tables, the head and its constants.

        Raises:
            ValueError: where encoder and decoder have vocabularies of different sizes.
        """
        sizes = tuple(stack.vocab_size for stack in self.config.stacks)
        if len(set(sizes)) > 1:
            raise ValueError(
                f"encoder.vocab_size={sizes[0]} differs from decoder.vocab_size={sizes[1]}: one number cannot resize both; "
                "resize model.encoder and model.decoder each"
            )
        options = (new_num_tokens, pad_to_multiple_of, mean_resizing)
        table = super().resize_token_embeddings(*options)
        size = table.weight.shape[0]
        if not self.config.share_embeddings:
            self.model.decoder.embed_tokens = self._get_resized_embeddings(self.model.decoder.embed_tokens, *options)
        for stack in self.config.stacks:
            stack.vocab_size = size
        if self.config.final_logits_bias:
            fresh = self.final_logits_bias.new_zeros(1, size)
            kept = min(size, self.final_logits_bias.shape[1])
            fresh[:, :kept] = self.final_logits_bias[:, :kept]
            self.final_logits_bias = fresh
        self.vocab_size = size
        self.tie_weights()
        return table

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, new_embeddings):
        self.lm_head = new_embeddings

    # ---- generation ----
    def _prepare_special_tokens(self, generation_config, *args, **kwargs):
        if generation_config.decoder_start_token_id is None:
            raise ValueError(
                "decoder_start_token_id=None: generation does not know which token decoder inputs begin with; give it to "
                "generate(), or set it in the config"
            )
        super()._prepare_special_tokens(generation_config, *args, **kwargs)

    def _prepare_text_encoder_decoder_kwargs_for_generation(self, inputs_tensor, model_kwargs, *args, **kwargs):
        check_encoder_mask(model_kwargs.get("attention_mask"))
        return super()._prepare_text_encoder_decoder_kwargs_for_generation(inputs_tensor, model_kwargs, *args, **kwargs)

    def prepare_inputs_for_generation(self, input_ids, past_key_values=None, attention_mask=None, **kwargs):
        """As transformers'; a compiled cache also gets positions and masks of the decoder, {layer type: boolean 4D mask}.

        Raises:
            ValueError: for a static cache of a decoder with the rope type 'longrope'.
        """
        padding, positions = kwargs.get("decoder_attention_mask"), kwargs.get("decoder_position_ids")
        fixed = past_key_values is not None and past_key_values.is_compileable
        if fixed and self.generator.reader.boundary is not None:
            raise ValueError(
                "a StaticCache does not follow the rope_type 'longrope' of a decoder, whose rows are run again at the "
                "original length; use a DynamicCache"
            )
        inputs = super(VariantsGenerationMixin, self).prepare_inputs_for_generation(
            input_ids, past_key_values=past_key_values, attention_mask=attention_mask, **kwargs
        )
        if fixed and (padding is None or padding.dim() == 2):
            tokens, cache = inputs["decoder_input_ids"], past_key_values.self_attention_cache
            shape = torch.empty((*tokens.shape, 0), dtype=self.dtype, device=tokens.device)
            sequence = self.generator.reader.peek(shape, padding, positions, cache)
            if padding is not None and tokens.shape[1] > 1:
                # masks that are made already would hide from the stack where its pads are, and so its positions
                inputs["decoder_attention_mask"] = padding
            else:
                inputs["decoder_attention_mask"] = self.generator.masks_of(sequence, cache)
                inputs["decoder_position_ids"] = sequence.position_ids
        return inputs


__all__ = [
    "VariantsForSeq2SeqLM",
    "VariantsSeq2SeqConfig",
    "VariantsSeq2SeqModel",
    "VariantsSeq2SeqPreTrainedModel",
]
