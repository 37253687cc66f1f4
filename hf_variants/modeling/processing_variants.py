"""The processor of the vision-language models: pictures and text in, what the model's forward takes out.

Notable here: `<image>` in a text stands for one image and becomes as many image tokens as the model will put features in,
counted by the functions that the model itself asks; a row that could not be run is refused here, with its numbers.
"""

from transformers.feature_extraction_utils import BatchFeature
from transformers.processing_utils import ProcessingKwargs, ProcessorMixin

from .pictures import to_pictures
from .room import copy_room
from .token_compression import tokens_of_grid

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ message['role'] + ': ' }}
{%- if message['content'] is string -%}{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}{{ '<image>' if part['type'] == 'image' else part['text'] }}{%- endfor -%}
{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}
"""


class VariantsProcessorKwargs(ProcessingKwargs, total=False):
    _defaults = {"text_kwargs": {"padding": False}}


class VariantsProcessor(ProcessorMixin):
    """An image processor and a tokenizer, and what they have to know of the model. `for_model` fills it in.

    Args:
        image_processor: one of transformers'; it resizes and normalises.
        tokenizer: with `image_token` as one of its tokens.
        image_token: stands for an image in a text, and in the ids for each of its tokens.
        patch_size: [height, width] of a patch in pixels.
        num_channels: 1 or 3.
        bridge, token_compression, compression_factor, num_resampler_tokens, image_delimiters: as in `VariantsVisionConfig`.
        keep_class_token: whether the tower's class token is among the features.
        prefix: whether token_type_ids are given, 0 for text and images, 1 for the suffix and what follows.
    """

    valid_processor_kwargs = VariantsProcessorKwargs

    def __init__(
        self,
        image_processor=None,
        tokenizer=None,
        chat_template=None,
        image_token="<image>",
        patch_size=(16, 16),
        num_channels=3,
        bridge="projection",
        token_compression="none",
        compression_factor=None,
        num_resampler_tokens=None,
        image_delimiters=True,
        keep_class_token=False,
        prefix=False,
        **kwargs,
    ):
        self.image_token, self.patch_size, self.num_channels = image_token, list(patch_size), num_channels
        self.bridge, self.token_compression, self.compression_factor = bridge, token_compression, compression_factor
        self.num_resampler_tokens, self.image_delimiters = num_resampler_tokens, image_delimiters
        self.keep_class_token, self.prefix = keep_class_token, prefix
        self.auto_map = {"AutoProcessor": "processing_variants.VariantsProcessor"}
        self.image_token_id = None
        if tokenizer is not None:
            self.image_token_id = tokenizer.convert_tokens_to_ids(image_token)
            if self.image_token_id is None or self.image_token_id == tokenizer.unk_token_id:
                raise ValueError(
                    f"image_token={image_token!r} is no token of the tokenizer; add it with "
                    f"tokenizer.add_special_tokens({{'additional_special_tokens': [{image_token!r}]}})"
                )
        super().__init__(image_processor, tokenizer, chat_template=chat_template)

    @classmethod
    def for_model(cls, config, tokenizer, image_processor=None, image_token="<image>", chat_template=None):
        """The processor of a model.

        Args:
            config: its `VariantsVisionConfig`.
            image_processor: None gives one that resizes to the tower's image_size and scales pixels to -1 ... 1.
            chat_template: None gives that of the tokenizer, or else a plain one of "role: text" lines.

        Raises:
            ValueError: where the tokenizer's image token is not the config's.
        """
        patch, vision = config.vision_config.patch_size, config.vision_config
        if image_processor is None:
            image_processor = plain_image_processor(vision.image_size, vision.num_channels)
        processor = cls(
            image_processor,
            tokenizer,
            chat_template=chat_template or tokenizer.chat_template or CHAT_TEMPLATE.replace("<image>", image_token),
            image_token=image_token,
            patch_size=patch if isinstance(patch, (list, tuple)) else [patch, patch],
            num_channels=vision.num_channels,
            bridge=config.bridge,
            token_compression=config.token_compression,
            compression_factor=config.compression_factor,
            num_resampler_tokens=config.num_resampler_tokens,
            image_delimiters=config.image_delimiters,
            keep_class_token=config.vision_feature_select_strategy == "full",
            prefix=config.image_attention == "prefix",
        )
        if processor.image_token_id != config.image_token_id:
            raise ValueError(
                f"image_token={image_token!r} is id {processor.image_token_id} of the tokenizer, but the config says "
                f"image_token_id={config.image_token_id}; give the same"
            )
        return processor

    @property
    def model_input_names(self):
        types = ["token_type_ids"] if self.prefix else []
        return ["input_ids", "attention_mask", *types, "pixel_values", "image_sizes", "image_counts"]

    def tokens_of_image(self, height, width):
        """Number of image tokens of an image that the image processor has made `height` x `width` pixels large."""
        if self.bridge == "gated_cross_attention":
            return 1
        grid = height // self.patch_size[0], width // self.patch_size[1]
        how = (self.token_compression, self.compression_factor, self.num_resampler_tokens)
        return tokens_of_grid(*how, *grid, self.keep_class_token) + 2 * int(self.image_delimiters)

    def __call__(self, images=None, text=None, suffix=None, **kwargs):
        """What the model takes of pictures and texts.

        Args:
            images: pictures (`pictures.to_picture` says which) in reading order, flat or one list per text.
            text: a string or a list of them, with `image_token` where an image is.
            suffix: what follows each text, as an answer does its prompt; marked by type 1 in `token_type_ids`.
            kwargs: as for any processor: `padding`, `truncation`, `max_length`, `return_tensors`, ...

        Returns:
            `BatchFeature` of input_ids and attention_mask; pixel_values [N, channels, height, width], image_counts [B], and
            image_sizes [N, 2] where sizes differ; token_type_ids where `suffix` is given or the model reads a prefix.

        Raises:
            ValueError: for a picture that cannot be read, naming it; where images and placeholders differ in number; where
                truncation would cut an image, or the placeholder of one.
        """
        if text is None and images is None:
            raise ValueError("give text, images, or both")
        options = self._merge_kwargs(VariantsProcessorKwargs, tokenizer_init_kwargs=self.tokenizer.init_kwargs, **kwargs)
        # transformers' own argument of that meaning is not a forward argument here
        tensors = options["text_kwargs"].pop("return_tensors", None)
        options["text_kwargs"].pop("return_mm_token_type_ids", None)
        found, sizes, images, per_text = {}, [], *self._flat(images)
        if images:
            found, sizes = self._pixels(images, options["images_kwargs"])
        if text is None:
            return BatchFeature(found, tensor_type=tensors)
        texts = [text] if isinstance(text, str) else list(text)
        ends = None if suffix is None else _ends(suffix, len(texts))
        counts = self._counts(texts, len(images), per_text)
        expanded, lengths = self._expanded(texts, [self.tokens_of_image(*size) for size in sizes])
        rows = self._tokenized(expanded, ends, lengths, options["text_kwargs"])
        if images:
            found["image_counts"] = counts
        return BatchFeature({**rows, **found}, tensor_type=tensors)

    def _flat(self, images):
        """Images in one list, and how many each text has where they were given by text."""
        if images is None:
            return [], None
        if not isinstance(images, (list, tuple)):
            return [images], None
        # chats give a text without images as None or as an empty list
        nested = [[] if part is None else part for part in images]
        if nested and all(isinstance(part, (list, tuple)) and not _is_array(part) for part in nested):
            return [image for part in nested for image in part], [len(part) for part in nested]
        return list(images), None

    def _pixels(self, images, options):
        import torch

        options = {name: value for name, value in options.items() if name != "return_tensors"}
        made = self.image_processor(to_pictures(images, self.num_channels), **options)["pixel_values"]
        made = [torch.as_tensor(image) for image in made]
        sizes = [tuple(image.shape[-2:]) for image in made]
        height, width = (max(side) for side in zip(*sizes, strict=True))
        pixels = torch.stack([_grown(image, height, width) for image in made])
        found = {"pixel_values": pixels}
        if len(set(sizes)) > 1:
            found["image_sizes"] = [list(size) for size in sizes]
        return found, sizes

    def _counts(self, texts, num_images, per_text):
        counts = [text.count(self.image_token) for text in texts]
        if sum(counts) != num_images:
            raise ValueError(
                f"the texts hold {sum(counts)} {self.image_token!r} ({counts}), but {num_images} images were given; write one "
                "where each image is"
            )
        if per_text is not None and per_text != counts:
            raise ValueError(f"the texts hold {counts} {self.image_token!r}, but {per_text} images were given for them")
        return counts

    def _expanded(self, texts, tokens):
        """Texts with as many image tokens as their images have, and their numbers."""
        remaining, expanded, lengths = iter(tokens), [], []
        for text in texts:
            pieces = text.split(self.image_token)
            here = [next(remaining) for _ in pieces[1:]]
            spelled = [self.image_token * count + piece for count, piece in zip(here, pieces[1:], strict=True)]
            expanded.append(pieces[0] + "".join(spelled))
            lengths.append(sum(here))
        return expanded, lengths

    def _tokenized(self, texts, ends, lengths, options):
        """Padded ids of texts and suffixes, tokenized apart, so that a prompt has the tokens that it has by itself."""
        options = dict(options)
        padding, limit, cuts = (options.pop(name, None) for name in ("padding", "max_length", "truncation"))
        rows = self.tokenizer(texts, **options)
        for index, (ids, wanted) in enumerate(zip(rows["input_ids"], lengths, strict=True)):
            if ids.count(self.image_token_id) != wanted:
                raise ValueError(
                    f"the tokenizer made {ids.count(self.image_token_id)} image tokens of text {index}, which needs {wanted}: "
                    f"{self.image_token!r} must be a token that it never splits or joins"
                )
        types = [[0] * len(ids) for ids in rows["input_ids"]]
        if ends is not None:
            behind = self.tokenizer(ends, **{**options, "add_special_tokens": False})
            types = [row + [1] * len(end) for row, end in zip(types, behind["input_ids"], strict=True)]
            for name in ("input_ids", "attention_mask"):
                if name in rows:
                    rows[name] = [row + end for row, end in zip(rows[name], behind[name], strict=True)]
        if ends is not None or self.prefix:
            rows["token_type_ids"] = types
        if cuts:
            limit = limit or self.tokenizer.model_max_length
            cut = (
                self._cut(rows, limit)
                if ends is not None
                else self.tokenizer(texts, **options, truncation=cuts, max_length=limit)
            )
            self._refuse_cut(rows["input_ids"], cut["input_ids"], limit)
            if self.prefix and ends is None:
                cut["token_type_ids"] = [[0] * len(ids) for ids in cut["input_ids"]]
            rows = cut
        length = {"max_length": limit} if padding == "max_length" else {}
        return self.tokenizer.pad(rows, padding=padding or False, **length, **_pad_options(options))

    def _cut(self, rows, limit):
        left = self.tokenizer.truncation_side == "left"
        return {name: [row[-limit:] if left else row[:limit] for row in part] for name, part in rows.items()}

    def _refuse_cut(self, rows, cut, max_length):
        for index, (whole, kept) in enumerate(zip(rows, cut, strict=True)):
            images, left = (ids.count(self.image_token_id) for ids in (whole, kept))
            if images != left:
                raise ValueError(
                    f"truncation to max_length={max_length} would cut text {index} of "
                    f"{len(whole)} tokens down to {left} of its {images} image tokens; give a larger max_length, fewer or "
                    "smaller images, or compress their tokens"
                )

    def save_pretrained(self, save_directory, *args, **kwargs):
        """As transformers', with the code that `auto_map` names beside it."""
        saved = super().save_pretrained(save_directory, *args, **kwargs)
        copy_room(__file__, save_directory)
        return saved


def plain_image_processor(image_size, num_channels=3):
    """Resizes to `image_size` (one side or [height, width]) and scales pixels to -1 ... 1."""
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    height, width = image_size if isinstance(image_size, (list, tuple)) else (image_size, image_size)
    half = [0.5] * num_channels
    return SiglipImageProcessorPil(
        size={"height": height, "width": width}, image_mean=half, image_std=half, do_convert_rgb=num_channels == 3
    )


def _grown(image, height, width):
    import torch

    return torch.nn.functional.pad(image, (0, width - image.shape[-1], 0, height - image.shape[-2]))


def _is_array(part):
    """Whether a nested list is the numbers of a picture, not a list of pictures."""
    while isinstance(part, (list, tuple)) and part:
        part = part[0]
    return isinstance(part, (int, float))


def _ends(suffix, count):
    ends = [suffix] if isinstance(suffix, str) else list(suffix)
    if len(ends) != count:
        raise ValueError(f"there are {count} texts, but {len(ends)} suffixes; give one for each")
    return ends


def _pad_options(options):
    named = ("pad_to_multiple_of", "padding_side", "return_attention_mask")
    return {name: options[name] for name in named if options.get(name) is not None}


__all__ = ["VariantsProcessor"]
