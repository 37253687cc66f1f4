"""Vision-language models: a tower, a bridge, and a language model of the family that reads images among its tokens.

Notable here: the text side is `VariantsModel` and the head of `VariantsForCausalLM`, unchanged, so losses, caches, RoPE rules
and experts are theirs; an image is N features and two delimiters in the row, L = sum(N_i + 2) + T, and positions, masks and
caches count them like any token.
"""

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.import_utils import is_tracing

from .configuration_variants_vision import VariantsVisionConfig
from .expert_loading import quantized_as
from .gated_cross_attention import GatedCrossAttention
from .image_blocks import IMAGE_BLOCKS
from .image_decoding import ImageGenerationMixin
from .image_inputs import read_images
from .image_readers import READERS, WIDTHS, Call
from .joined_parts import join_parts
from .losses import IGNORE, VariantsCausalLMOutput, next_token_labels
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
        self.check_types(input_ids, token_type_ids)
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

    def check_types(self, input_ids, token_type_ids):
        """Raise a ValueError for types that nothing would read, other than those that say again where images are."""
        if token_type_ids is None or self.config.image_attention == "prefix" or is_tracing(token_type_ids):
            return
        if self.config.image_attention == "bidirectional" and input_ids is not None:
            # what Gemma 3's processor gives
            if torch.equal(token_type_ids.bool(), input_ids == self.config.image_token_id):
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


class VariantsForImageTextToText(VariantsVisionPreTrainedModel, VariantsLanguageModel, ImageGenerationMixin):
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
        return join_parts(cls, language_model, vision_model, image_token_id, **keys)

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
        """Targets [B, T], aligned with the positions, of which none is an image token.

        Raises:
            ValueError: where labels hold image tokens that `num_items_in_batch` has counted.
        """
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


# the Trainer shifts labels under label smoothing for the models that this table names
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["variants_vision"] = "VariantsForImageTextToText"

__all__ = [
    "VariantsForImageTextToText",
    "VariantsVisionConfig",
    "VariantsVisionModel",
    "VariantsVisionPreTrainedModel",
]
