"""Generation with images: they go in with the first call, and beams and drafts keep each row's own.

Notable here: later calls find images in the cache, so only those whose placeholders are among the new tokens are sent again.
"""

import torch
from transformers.generation import SuppressTokensLogitsProcessor

from .decoding import VariantsGenerationMixin
from .image_inputs import images_per_row, read_images

# the arguments that bring images
IMAGES = ("pixel_values", "image_sizes", "image_counts")


class ImageGenerationMixin(VariantsGenerationMixin):
    """`generate` of a model whose `model` is a `VariantsVisionModel`."""

    def prepare_inputs_for_generation(
        self, input_ids, next_sequence_length=None, past_key_values=None, is_first_iteration=False, **kwargs
    ):
        """As `VariantsForCausalLM`'s; images go in with the first call alone."""
        inputs = super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )
        if not is_first_iteration and kwargs.get("use_cache", True):
            for name in (*IMAGES, "token_type_ids"):
                inputs.pop(name, None)
        elif kwargs.get("pixel_values") is not None and inputs["input_ids"].shape[1] < input_ids.shape[1]:
            inputs.update(self._not_cached(input_ids, inputs))
        return inputs

    def _not_cached(self, input_ids, inputs):
        """The images whose placeholders are among `inputs`, of those of the whole rows `input_ids`."""
        images = read_images(*(inputs.get(name) for name in IMAGES))
        lengths = [self.config.tokens_of_image(*images.size_of(index)) for index in range(len(images.pixels))]
        placeholders = [(ids == self.config.image_token_id).sum(dim=1).tolist() for ids in (input_ids, inputs["input_ids"])]
        counts = images_per_row(placeholders[0], lengths, inputs.get("image_counts"))
        kept, start = [], 0
        for count, new in zip(counts, placeholders[1], strict=True):
            end = first = start + count
            while first > start and sum(lengths[first:end]) < new:
                first -= 1
            kept.extend(range(first, end))
            start = end
        sizes = None if images.sizes is None else torch.tensor([images.sizes[index] for index in kept])
        pixels = images.pixels[kept] if kept else None
        return {"pixel_values": pixels, "image_sizes": sizes if kept else None, "image_counts": None}

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs, *args, **kwargs):
        types = model_kwargs.get("token_type_ids")
        model_kwargs = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)
        if types is not None:
            # transformers repeats the last type, but what is generated follows the prefix, and is no image
            grown = model_kwargs["token_type_ids"].shape[1] - types.shape[1]
            new = types.new_full((types.shape[0], grown), int(self.config.image_attention == "prefix"))
            model_kwargs["token_type_ids"] = torch.cat((types, new), dim=1)
        return model_kwargs

    def _get_logits_processor(self, *args, **kwargs):
        # no image would stand behind an image token that is generated
        processors = super()._get_logits_processor(*args, **kwargs)
        if self.config.image_token_id < self.vocab_size:
            processors.append(SuppressTokensLogitsProcessor([self.config.image_token_id], device=self.device))
        return processors

    def _get_candidate_generator(self, *args, **kwargs):
        images = kwargs["model_kwargs"].get("pixel_values")
        if images is not None and kwargs.get("assistant_model") is not None:
            raise ValueError(
                "assistant_model drafts from text alone, and there are pixel_values; draft with prompt_lookup_num_tokens, or "
                "leave assistant_model out"
            )
        return super()._get_candidate_generator(*args, **kwargs)

    def mask_sequence(self, sequence, inputs):
        """What `decoding` builds the masks of a compiled cache from, its image blocks known."""
        if self.config.image_attention == "causal" or sequence.inputs_embeds.shape[1] == 1:
            return sequence
        images = {name: inputs.get(name) for name in IMAGES}
        lengths = None if images["pixel_values"] is None else self.model.image_lengths(**images)
        given = inputs["input_ids"], lengths, inputs.get("token_type_ids"), inputs.get("past_key_values")
        return sequence._replace(blocks=self.model.blocks_of(*given))

    def _expand_inputs_for_generation(self, expand_size=1, is_encoder_decoder=False, input_ids=None, **kwargs):
        pixels = kwargs.get("pixel_values")
        if expand_size > 1 and pixels is not None and pixels.dim() == 4:
            kwargs.update(self._by_row(input_ids, kwargs))
        return super()._expand_inputs_for_generation(
            expand_size=expand_size, is_encoder_decoder=is_encoder_decoder, input_ids=input_ids, **kwargs
        )

    def _by_row(self, input_ids, kwargs):
        """Images as [B, K, ...], which beams repeat like any input."""
        images = {name: kwargs.get(name) for name in IMAGES}
        placeholders = (input_ids == self.config.image_token_id).sum(dim=1).tolist()
        counts = images_per_row(placeholders, self.model.image_lengths(**images), images["image_counts"])
        spread = {"image_counts": torch.tensor(counts, device=input_ids.device)}
        for name in ("pixel_values", "image_sizes"):
            if images[name] is not None:
                rows = images[name].split(counts)
                spread[name] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return spread
