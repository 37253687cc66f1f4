"""What generation has to know about this family, beside what transformers' `generate` does for every model.

Notable here: compiled caches get masks of fixed shape, built from the positions of the whole row; and whatever is drafted by
assisted decoding is cut where a draft would change the rotary frequencies, so that it yields the tokens of plain decoding.
"""

import torch
from transformers.generation import GenerationMixin


class VariantsGenerationMixin(GenerationMixin):
    """`generate` for a head whose generating stack is `self.generator`: `self.model`, or the decoder of it."""

    @property
    def generator(self):
        return self.model

    def create_masks_for_generate(self, *args, **kwargs):
        """Nothing yet: `prepare_inputs_for_generation` makes the masks, for it sees the positions of the whole row."""
        return {}

    def prepare_inputs_for_generation(
        self,
        input_ids,
        next_sequence_length=None,
        past_key_values=None,
        attention_mask=None,
        inputs_embeds=None,
        is_first_iteration=False,
        position_ids=None,
        **kwargs,
    ):
        """As transformers'; a compiled cache also gets its masks, {layer type: boolean 4D mask}.

        It gets the whole row again where LongRoPE crosses its original length: other caches are recomputed inside the forward,
        which a compiled one must not branch on.
        """
        fixed = past_key_values is not None and past_key_values.is_compileable
        if fixed and self.generator.reader.boundary is not None and not is_first_iteration:
            new = self.get_input_embeddings()(input_ids[:, -(next_sequence_length or 0) :])
            row = self.generator.reader.restart(new, attention_mask, position_ids, past_key_values)
            if row is not None:
                inputs_embeds, next_sequence_length, is_first_iteration = row, None, True
        inputs = super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            is_first_iteration=is_first_iteration,
            position_ids=position_ids,
            **kwargs,
        )
        if fixed and (attention_mask is None or attention_mask.dim() == 2):
            tokens = inputs["input_ids"] if inputs.get("inputs_embeds") is None else inputs["inputs_embeds"]
            shape = torch.empty((*tokens.shape[:2], 0), dtype=self.dtype, device=tokens.device)
            sequence = self.generator.reader.peek(shape, attention_mask, position_ids, past_key_values)
            sequence = self.mask_sequence(sequence, inputs)
            inputs["attention_mask"] = self.generator.masks_of(sequence, past_key_values)
        return inputs

    def mask_sequence(self, sequence, inputs):
        """`sequence` with what a head knows beside it of the tokens `inputs` that are to be run."""
        return sequence

    def _get_candidate_generator(self, *args, **kwargs):
        generator = super()._get_candidate_generator(*args, **kwargs)
        reader, model_kwargs = self.generator.reader, kwargs["model_kwargs"]
        if reader.follows_length:
            mask, cache = model_kwargs.get("attention_mask"), model_kwargs["past_key_values"]
            pads = 0 if mask is None else int((mask == 0).sum())
            generator.get_candidates = SteadyDrafts(generator.get_candidates, cache, reader.boundary, pads)
        return generator


class SteadyDrafts:
    """Drafts cut where they would change the length that rotary frequencies are chosen for.

    A prompt is run alone, for `dynamic` keeps the frequencies that the prompt chose; and no draft reaches across the original
    length of `longrope`, before which plain decoding turns by the short factors.

    Args:
        draft: `get_candidates` of a candidate generator.
        cache: the cache of the model that checks the drafts.
        boundary: original length of the LongRoPE rule, or None.
        pads: number of pads in the row.
    """

    def __init__(self, draft, cache, boundary, pads):
        self.draft, self.cache, self.boundary, self.pads = draft, cache, boundary, pads

    def __call__(self, input_ids, *args, **kwargs):
        """input_ids [1, T]; returns the row with its draft [1, T + n], and the draft's logits [1, n, vocab] or None."""
        drafted, logits = self.draft(input_ids, *args, **kwargs)
        kept = min(self._room(input_ids.shape[1]), drafted.shape[1] - input_ids.shape[1])
        if kept == 0:
            return input_ids, None
        return drafted[:, : input_ids.shape[1] + kept], None if logits is None else logits[:, :kept]

    def _room(self, length):
        if self.cache.get_seq_length() == 0:
            return 0
        real = length - self.pads
        return self.boundary - real if self.boundary is not None and real <= self.boundary else length
