"""Vision-language models: a tower, a bridge, and a language model of the family that reads images among its tokens.

Notable here: the text side is `VariantsModel` and the head of `VariantsForCausalLM`, unchanged, so losses, caches, RoPE rules
and experts are theirs; an image is N features and two delimiters in the row, L = sum(N_i + 2) + T, and positions, masks and
caches count them like any token.
"""

import copy
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import SuppressTokensLogitsProcessor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.import_utils import is_tracing

from .configuration_variants_vision import VariantsVisionConfig
from .decoding import VariantsGenerationMixin
from .expert_loading import quantized_as
from .gated_cross_attention import GatedCrossAttention, ImageCache
from .image_inputs import images_per_row, read_images
from .image_memory import view_images
from .kv_cache import fit_cache
from .losses import IGNORE, VariantsCausalLMOutput, next_token_labels
from .masks import Blocks
from .modeling_variants import VariantsLanguageModel
from .variants_base import VariantsPreTrainedModel
from .variants_model import VariantsModel
from .vision_bridge import VisionBridge
from .vision_tower import build_tower


class VariantsVisionPreTrainedModel(VariantsPreTrainedModel):
    """Base class of the vision-language models."""

    config: VariantsVisionConfig
    input_modalities = ("image", "text")


class VariantsVisionModel(VariantsVisionPreTrainedModel):
    """Tower, bridge and language model, without a head."""

    def __init__(self, config):
        super().__init__(config)
        text = config.text_config
        keep = config.vision_feature_select_strategy == "full"
        self.vision_tower = build_tower(config.vision_config, config.vision_feature_layer, keep)
        self.multi_modal_projector = VisionBridge(config, WIDTHS[config.bridge](text))
        with quantized_as(config, text):
            self.language_model = VariantsModel(text, add_pooling_layer=False)
        chosen, plan = config.cross_attention_layers or [], text.layer_plan()
        blocks = {str(index): GatedCrossAttention(text, plan[index], config.cross_attention_mlp) for index in chosen}
        self.cross_layers = nn.ModuleDict(blocks)
        self.read = READERS[config.bridge]
        self.gradient_checkpointing = False
        self.post_init()

    # the language model's own, for generation
    @property
    def reader(self):
        return self.language_model.reader

    def masks_of(self, *args, **kwargs):
        """As the language model's."""
        return self.language_model.masks_of(*args, **kwargs)

    def get_image_features(self, pixel_values, image_sizes=None, image_counts=None):
        """What the language model reads of each image: a list of [tokens, hidden], delimiters included.

        Arguments as `image_inputs.read_images`.
        """
        images = read_images(pixel_values, image_sizes, image_counts)
        found = [None] * len(images.pixels)
        for indices, pixels in images.groups():
            features = self.vision_tower(pixels)
            read = self.multi_modal_projector(features, self.vision_tower.grid(*pixels.shape[2:]))
            for index, image in zip(indices, read, strict=True):
                found[index] = image
        return found

    def image_lengths(self, pixel_values, image_sizes=None, image_counts=None):
        """Number of placeholders of each image, without running the tower."""
        images = read_images(pixel_values, image_sizes, image_counts)
        return [self.config.tokens_of_image(*images.size_of(index)) for index in range(len(images.pixels))]

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        attention_mask: torch.Tensor | dict | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        use_cache: bool | None = None,
        image_sizes: torch.LongTensor | None = None,
        image_counts: torch.LongTensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ):
        r"""Arguments of `VariantsModel.forward`, and:

        Args:
            pixel_values: [N, channels, height, width], the images of all rows in reading order, or [B, K, channels, height,
                width]. Only with the call that holds their placeholders; later calls find them in the cache.
            image_sizes: [N, 2] or [B, K, 2], (height, width) of each image where smaller ones are padded below and right.
            image_counts: [B], images per row; found from the placeholders where it is not given.
            token_type_ids: [B, T], 0 for the prefix and 1 for what follows; read under `image_attention="prefix"`.

        Raises:
            ValueError: where placeholders and image tokens differ, naming both numbers; for images with `inputs_embeds`.
        """
        if input_ids is not None and inputs_embeds is not None:
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        self.check_types(token_type_ids)
        images = self.images_of(input_ids, pixel_values, image_sizes, image_counts)
        if inputs_embeds is None and input_ids is not None:
            past_key_values = self.cache_of(use_cache, past_key_values)
            call = Call(input_ids, images, image_counts, past_key_values, attention_mask, position_ids)
            inputs_embeds, read = self.read(self, call)
            kwargs.update(read)
            if images is None and self.training and torch.is_grad_enabled():
                inputs_embeds = inputs_embeds + self.unread_parameters().to(inputs_embeds.dtype)
        several = inputs_embeds is not None and inputs_embeds.shape[1] > 1
        lengths = None if images is None else [len(image) for image in images]
        return self.language_model(
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            blocks=self.blocks_of(input_ids, lengths, token_type_ids, past_key_values) if several else None,
            **kwargs,
        )

    def images_of(self, input_ids, pixel_values, image_sizes, image_counts):
        """What `get_image_features` gives, or None without images. Raises ValueError for images without ids."""
        if pixel_values is None:
            return None
        if input_ids is None:
            raise ValueError("pixel_values needs input_ids, whose placeholders say where the images are")
        return self.get_image_features(pixel_values, image_sizes, image_counts)

    def check_types(self, token_type_ids):
        """Raise a ValueError for types that nothing would read."""
        if token_type_ids is None or self.config.image_attention == "prefix" or is_tracing(token_type_ids):
            return
        if bool(token_type_ids.any()):
            raise ValueError(
                f"token_type_ids has the type {int(token_type_ids.max())}, which "
                f"image_attention={self.config.image_attention!r} does not read; leave them out, or set it to 'prefix'"
            )

    def unread_parameters(self):
        """Zero, with a zero gradient for each trained parameter that a batch without images does not read: ranks that train
        together then wait for the same gradients.
        """
        parts = (self.vision_tower, self.multi_modal_projector, self.cross_layers)
        trained = [parameter for part in parts for parameter in part.parameters() if parameter.requires_grad]
        total = torch.zeros((), device=self.device)
        for parameter in trained:
            total = total + parameter.flatten()[:1].sum().to(total.device) * 0
        return total

    def cache_of(self, use_cache, past_key_values):
        """The cache of a call; where images are read across, the one that the language model would make for itself."""
        use_cache = self.config.text_config.use_cache if use_cache is None else use_cache
        checkpointed = self.gradient_checkpointing and self.training
        if past_key_values is None and use_cache and len(self.cross_layers) and not checkpointed:
            return DynamicCache(config=self.config.text_config)
        return past_key_values

    def blocks_of(self, input_ids, lengths, token_type_ids, past_key_values=None):
        """Which of the new tokens see each other in both directions, as `config.image_attention` says; `Blocks` or None.

        lengths: tokens of each image among the new tokens, or None where there are none.
        """
        return IMAGE_BLOCKS[self.config.image_attention](self, input_ids, lengths, token_type_ids, past_key_values)


class Call(NamedTuple):
    """What a call of `VariantsVisionModel` brings: its arguments, with images as lists of [tokens, hidden]."""

    input_ids: torch.Tensor
    images: list | None
    image_counts: torch.Tensor | None
    cache: Cache | None
    attention_mask: torch.Tensor | dict | None
    position_ids: torch.Tensor | None


def place_in_row(model, call):
    """Embeddings [B, T, H] of a row of text in which image tokens stand for the features of images, in reading order."""
    is_image = call.input_ids == model.config.image_token_id
    # an image token may lie outside of the vocabulary; what is looked up for it is replaced
    embeds = model.get_input_embeddings()(call.input_ids.masked_fill(is_image, 0))
    if not is_tracing(call.input_ids):
        lengths = [] if call.images is None else [len(image) for image in call.images]
        images_per_row(is_image.sum(dim=1).tolist(), lengths, call.image_counts)
    if call.images is not None:
        features = torch.cat(call.images).to(embeds.device, embeds.dtype)
        embeds = embeds.masked_scatter(is_image.unsqueeze(-1), features)
    return embeds, {}


def look_across(model, call):
    """Embeddings [B, T, H] of the text alone, and gated cross-attentions to the images before each token."""
    config, input_ids, cache = model.config, call.input_ids, call.cache
    is_image = input_ids == config.image_token_id
    counts = None
    if call.images is not None or not is_tracing(input_ids):
        lengths = [] if call.images is None else [1] * len(call.images)
        counts = images_per_row(is_image.sum(dim=1).tolist(), lengths, call.image_counts)
    embeds = model.get_input_embeddings()(input_ids)
    mask = call.attention_mask
    visible = mask[:, -input_ids.shape[1] :] if isinstance(mask, torch.Tensor) and mask.dim() == 2 else None
    blocks = model.cross_layers
    shape = config.cross_attention_scope, cache, config.text_config.num_hidden_layers, len(blocks)
    fit_cache(cache, *model.language_model.windows)
    images = None if call.images is None else [image.to(embeds.device, embeds.dtype) for image in call.images]
    view = view_images(is_image, images, counts, *shape, call.position_ids, visible)
    if view is None:
        return embeds, {}
    layers = [None] * len(blocks)
    if view.layers is not None:
        layers = [ImageCache(layer, int(index)) for layer, index in zip(view.layers, blocks, strict=True)]
    return embeds, {
        "insertions": {
            int(index): partial(look, block, view, layer) for (index, block), layer in zip(blocks.items(), layers, strict=True)
        }
    }


def look(block, view, layer, hidden_states):
    # by position: what is handed to a checkpointed module by name would get no gradient
    return block(hidden_states, view.states, view.sees, view.mask, layer)


# bridge -> (model, `Call`) -> embeddings, further arguments of the language model
READERS = {"projection": place_in_row, "gated_cross_attention": look_across}
# bridge -> width of what images become
WIDTHS = {"projection": lambda text: text.embedding_size, "gated_cross_attention": lambda text: text.hidden_size}


def no_blocks(model, input_ids, lengths, token_type_ids, past_key_values):
    return None


def image_blocks(model, input_ids, lengths, token_type_ids, past_key_values):
    """The tokens of each image, its delimiters included."""
    if lengths is None:
        return None
    is_image = input_ids == model.config.image_token_id
    numbers = torch.repeat_interleave(torch.arange(1, len(lengths) + 1), torch.tensor(lengths)).to(input_ids.device)
    return Blocks(torch.zeros_like(input_ids).masked_scatter(is_image, numbers), windowed=True)


def prefix_block(model, input_ids, lengths, token_type_ids, past_key_values):
    """All tokens of type 0; behind cached tokens none, for the prefix ends where it was first run."""
    cached = past_key_values is not None and past_key_values.get_seq_length() > 0
    if cached and lengths is None:
        return None
    if token_type_ids is None:
        raise ValueError(
            "image_attention='prefix' needs token_type_ids, 0 for the tokens that all see each other (images and prompt) and "
            "1 for those that follow"
        )
    return Blocks((token_type_ids == 0).long(), windowed=False)


# image_attention -> (model, input_ids, lengths, token types, cache) -> `Blocks` or None
IMAGE_BLOCKS = {"causal": no_blocks, "bidirectional": image_blocks, "prefix": prefix_block}


# the arguments that bring images
IMAGES = ("pixel_values", "image_sizes", "image_counts")


class VariantsForImageTextToText(VariantsVisionPreTrainedModel, VariantsLanguageModel, VariantsGenerationMixin):
    """Images and text in, text out: `VariantsVisionModel` with the language-model head of its text."""

    _tied_weights_keys = {"lm_head.weight": "model.language_model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        # read by the Trainer, which takes the kind of loss from the class name: the first token of a row is no target
        self.loss_type = "ForCausalLM"

    @classmethod
    def from_parts(cls, language_model, vision_model, image_token_id, **keys):
        """A model of a trained language model and a trained tower, with a fresh bridge.

        Args:
            language_model: a `VariantsForCausalLM`; `hf_variants.convert.from_native` gives one of any native family.
            vision_model: a model of a supported tower (`CLIPVisionModel`, `SiglipVisionModel`, `ViTModel`, `Dinov2Model`,
                `VariantsImageEncoder`). What pools its patches is left out.
            image_token_id: as in the config; under `bridge="gated_cross_attention"` a row of the vocabulary, for which
                `language_model.resize_token_embeddings` makes room.
            keys: further keys of `VariantsVisionConfig`.

        Returns:
            The model in the dtype of the language model, with copies of the weights; train its bridge first.

        Raises:
            ValueError: for other models, or as the config.
        """
        if not hasattr(language_model.config, "layer_plan") or not hasattr(language_model, "lm_head"):
            raise ValueError(
                f"{type(language_model).__name__} is no VariantsForCausalLM; bring it in with hf_variants.convert.from_native"
            )
        text, vision = copy.deepcopy(language_model.config), copy.deepcopy(vision_model.config)
        config = cls.config_class(text_config=text, vision_config=vision, image_token_id=image_token_id, **keys)
        model = cls(config).to(language_model.dtype)
        model.model.language_model.load_state_dict(language_model.model.state_dict(), strict=False)
        model.lm_head.load_state_dict(language_model.lm_head.state_dict())
        if not isinstance(model.transform, nn.Identity):
            model.transform.load_state_dict(language_model.transform.state_dict())
        tower = model.model.vision_tower.vision_model
        given = vision_model.state_dict()
        missing = [name for name in tower.state_dict() if name not in given]
        if missing:
            raise ValueError(f"{type(vision_model).__name__} lacks weights that the tower has: {missing[:6]}")
        tower.load_state_dict({name: given[name] for name in tower.state_dict()})
        model.generation_config = copy.deepcopy(language_model.generation_config)
        return model

    @property
    def text_config(self):
        return self.config.text_config

    def build_stack(self, config, add_pooling_layer):
        return VariantsVisionModel(config)

    def get_image_features(self, pixel_values, image_sizes=None, image_counts=None):
        """As `VariantsVisionModel.get_image_features`."""
        return self.model.get_image_features(pixel_values, image_sizes, image_counts)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        pixel_values: torch.FloatTensor | None = None,
        attention_mask: torch.Tensor | dict | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        skip_logits: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        image_sizes: torch.LongTensor | None = None,
        image_counts: torch.LongTensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VariantsCausalLMOutput:
        r"""Arguments of `VariantsVisionModel.forward` and of `VariantsForCausalLM.forward`.

        Labels at image tokens count for nothing.

        Raises:
            ValueError: for labels at image tokens where `num_items_in_batch` is given, which has counted them.
        """
        targets = kwargs.pop("shift_labels", None)
        if targets is not None or labels is not None:
            targets = self.without_images(input_ids, labels, targets, num_items_in_batch)
        inputs = dict(
            input_ids=input_ids,
            pixel_values=pixel_values,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            image_sizes=image_sizes,
            image_counts=image_counts,
            token_type_ids=token_type_ids,
            **kwargs,
        )
        return self.language_model(inputs, targets, logits_to_keep, skip_logits, num_items_in_batch)

    def without_images(self, input_ids, labels, targets, num_items_in_batch):
        """Targets [B, T], aligned with the positions, of which none is an image token."""
        targets = next_token_labels(labels) if targets is None else targets
        if input_ids is None:
            return targets
        is_image = next_token_labels(input_ids) == self.config.image_token_id
        if num_items_in_batch is not None and bool((is_image & (targets != IGNORE)).any()):
            raise ValueError(
                f"labels hold {int((is_image & (targets != IGNORE)).sum())} image tokens, which num_items_in_batch counts as "
                f"targets; set them to {IGNORE}, as the collator does"
            )
        return targets.masked_fill(is_image, IGNORE)

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
            # transformers repeats the last type, but what is generated follows the prefix
            grown = model_kwargs["token_type_ids"].shape[1] - types.shape[1]
            model_kwargs["token_type_ids"] = torch.cat((types, types.new_ones(types.shape[0], grown)), dim=1)
        return model_kwargs

    def _get_logits_processor(self, *args, **kwargs):
        # no image would stand behind an image token that is generated
        processors = super()._get_logits_processor(*args, **kwargs)
        if self.config.image_token_id < self.vocab_size:
            processors.append(SuppressTokensLogitsProcessor([self.config.image_token_id], device=self.device))
        return processors

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


# the Trainer shifts labels under label smoothing for the models that this table names
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["variants_vision"] = "VariantsForImageTextToText"

__all__ = [
    "VariantsForImageTextToText",
    "VariantsVisionConfig",
    "VariantsVisionModel",
    "VariantsVisionPreTrainedModel",
]
